"""The client's side of the API: what `shoal chat` and `shoal status` ask of a server.

Speaks to Shoal and to any OpenAI-compatible endpoint. Turns everything that can go wrong into
a ClientError that says in plain words what to do. Prints nothing, waits for nothing but the
server, and shows the key to nobody.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from shoal.core.errors import ConfigError, ShoalError
from shoal.gateway.listen_address import DEFAULT_HOST, DEFAULT_PORT

DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"

CONNECT_DEADLINE_S = 5.0


class ClientError(ShoalError):
    """A request that got no answer, or not a whole one.

    status: of the response, None where there was none. retry_after_s: the server's hint.
    """

    code = "client_error"

    def __init__(
        self,
        message: str,
        *,
        next_step: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server. api_root: up to and including the version, `http://127.0.0.1:8000/v1`.
    quiet_s: longest silence before the server is given up."""

    api_root: str
    key: str | None = field(default=None, repr=False)
    quiet_s: float = 120.0

    @property
    def server_root(self) -> str:
        return self.api_root.removesuffix("/v1")


def endpoint_at(base_url: str, *, key: str | None = None, quiet_s: float = 120.0) -> Endpoint:
    """An endpoint from a base URL with or without `/v1`. Raises ConfigError for a bad URL."""
    text = base_url.strip().rstrip("/")
    try:
        url = httpx.URL(text)
        is_usable = url.scheme in ("http", "https") and bool(url.host)
    except httpx.InvalidURL:
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"{base_url!r} is not a base URL.", next_step=f"Write it like {DEFAULT_URL} or https://host/v1."
        )
    return Endpoint(f"{text}/v1" if url.path in ("", "/") else text, key, quiet_s)


class ApiClient:
    """Use as a context manager, or call `close`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        headers = {} if endpoint.key is None else {"Authorization": f"Bearer {endpoint.key}"}
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(endpoint.quiet_s, connect=CONNECT_DEADLINE_S),
            # A proxy for the internet cannot reach this machine's loopback.
            trust_env=not _is_loopback(endpoint.api_root),
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def models(self) -> list[str]:
        """Ids of the models served, as the server orders them. Raises ClientError."""
        listing = self._get_json(f"{self._endpoint.api_root}/models")
        entries = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(entries, list):
            raise self._not_the_api()
        return [entry["id"] for entry in entries if isinstance(entry, dict) and "id" in entry]

    def cluster_status(self) -> dict[str, object]:
        """Shoal's /admin/status. Raises ClientError."""
        status = self._get_json(f"{self._endpoint.server_root}/admin/status")
        if not isinstance(status, dict) or not isinstance(status.get("workers"), list):
            raise ClientError(
                f"What answers at {self._endpoint.server_root} is not Shoal.",
                next_step="Set SHOAL_URL to where Shoal listens.",
            )
        return status

    def leave(self, node: str) -> None:
        """Ask Shoal to let a machine go. Raises ClientError, with the names known for another one."""
        try:
            response = self._http.post(f"{self._endpoint.server_root}/admin/leave", json={"node": node})
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if response.status_code != 200:
            raise self._advice(response)

    def request_times(self, request_id: str | None) -> dict[str, object]:
        """Shoal's /admin/trace, of the newest request without an id. Raises ClientError."""
        which = "" if request_id is None else f"/{quote(request_id, safe='')}"
        found = self._get_json(f"{self._endpoint.server_root}/admin/trace{which}")
        if not isinstance(found, dict):
            raise self._not_the_api()
        return found

    def stream_chat(self, body: dict[str, object]) -> Generator[str, None, None]:
        """Pieces of the answer as they arrive. Closing the generator stops the answer.

        Raises ClientError, also after some pieces, when the answer is not complete.
        """
        url = f"{self._endpoint.api_root}/chat/completions"
        try:
            with self._http.stream("POST", url, json={**body, "stream": True}) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._advice(response)
                yield from self._pieces(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _pieces(self, response: httpx.Response) -> Generator[str, None, None]:
        is_finished = False
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            payload = line[5:].strip()
            if payload == "[DONE]":
                return
            chunk = _parse_object(payload)
            if chunk.get("error"):
                raise ClientError(f"The answer was broken off: {_error_text(chunk)}")
            text, finish_reason = _choice_of(chunk)
            is_finished = is_finished or finish_reason is not None
            if text:
                yield text
        if not is_finished:
            raise ClientError("The connection ended before the answer was complete.")

    def _get_json(self, url: str) -> object:
        try:
            response = self._http.get(url)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if response.status_code != 200:
            raise self._advice(response)
        try:
            return response.json()
        except ValueError:
            raise self._not_the_api() from None

    def _not_the_api(self) -> ClientError:
        return ClientError(
            f"What answers at {self._endpoint.api_root} does not speak OpenAI's API.",
            next_step="Check the base URL; it usually ends in /v1.",
        )

    def _unreachable(self, error: httpx.HTTPError) -> ClientError:
        where = self._endpoint.server_root
        match error:
            case httpx.ConnectTimeout():
                return ClientError(
                    f"{where} did not answer within {CONNECT_DEADLINE_S:.0f} s.",
                    next_step="Check the address, and that no firewall is in the way.",
                )
            case httpx.TimeoutException():
                return ClientError(
                    f"{where} sent nothing for {self._endpoint.quiet_s:.0f} s.",
                    next_step="See `shoal status`; a longer --timeout waits for a slower model.",
                )
            case httpx.ConnectError():
                return ClientError(
                    f"Nothing answers at {where} ({error}).",
                    next_step="Is it running? Start it with: shoal serve MODEL",
                )
        return ClientError(f"The connection to {where} failed: {error or type(error).__name__}.")

    def _advice(self, response: httpx.Response) -> ClientError:
        said = _error_text(_parse_object(response.text))
        status = response.status_code
        match status:
            case 401 | 403 if response.url.path.startswith("/admin/"):
                message, next_step = said, None
            case 401 | 403:
                message = f"The server refused the key: {said}"
                next_step = "Set SHOAL_API_KEY (or OPENAI_API_KEY) to a valid key."
            case 404:
                message, next_step = said, None
            case 429:
                message, next_step = f"The server is busy: {said}", None
            case _:
                message, next_step = f"The server answered {status}: {said}", None
        return ClientError(
            message, next_step=next_step, status=status, retry_after_s=_retry_after_s(response)
        )


def _retry_after_s(response: httpx.Response) -> float | None:
    hint = response.headers.get("retry-after", "")
    return float(hint) if hint.isascii() and hint.isdigit() and len(hint) < 10 else None


def _parse_object(text: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {"error": text[:200]}
    return parsed if isinstance(parsed, dict) else {}


def _error_text(body: dict[str, object]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return str(error) if error else "no reason given."


def _choice_of(chunk: dict[str, object]) -> tuple[str | None, object]:
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None, None
    delta = choices[0].get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    return text if isinstance(text, str) else None, choices[0].get("finish_reason")


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
