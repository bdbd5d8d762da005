"""Reads a request's body into a JSON object, within bounds of size and time.

Every way a body can be broken is an error of its own; none reaches the routes.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request

from shoal.core.errors import BadRequest

MAX_BODY_BYTES = 8 * 2**20
"""A context of a million tokens is about 4 MB of English."""

BODY_DEADLINE_S = 60.0
"""For the whole body; a slower client would hold a connection for nothing."""


class UnsupportedMediaType(BadRequest):
    """The body is not declared to be JSON in UTF-8."""

    code = "unsupported_media_type"


class BodyTooLarge(BadRequest):
    """The body has more than MAX_BODY_BYTES."""

    code = "body_too_large"

    def __init__(self) -> None:
        super().__init__(
            f"The request body is larger than {MAX_BODY_BYTES // 2**20} MiB.",
            next_step="Shorten the messages.",
        )


class BodyTimeout(BadRequest):
    """The body did not arrive in time."""

    code = "body_timeout"


async def read_json_object(request: Request) -> dict[str, object]:
    """The body as a JSON object.

    Raises BadRequest or a subclass above; starlette's ClientDisconnect when the client leaves
    meanwhile.
    """
    _check_media_type(request)
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            body = await _read_bytes(request)
    except TimeoutError:
        raise BodyTimeout(f"The request body did not arrive within {BODY_DEADLINE_S:.0f} s.") from None
    return parse_json_object(body)


def parse_json_object(body: bytes) -> dict[str, object]:
    """Decode a JSON object. Refuses what Python's own parser lets through: NaN, Infinity, lone
    surrogates. Raises BadRequest."""
    try:
        # Checked apart, because inside msgspec it fails with a position that is not the body's.
        body.decode()
        parsed = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise _malformed(
            f"it is not UTF-8 (byte {error.start})", next_step="Encode the body as UTF-8."
        ) from None
    except msgspec.MsgspecError as error:
        hint = " A \\uD800-\\uDFFF escape must be half of a pair." if b"\\ud" in body.lower() else ""
        raise _malformed(f"{str(error).rstrip('.')}.{hint}".rstrip("."), next_step=None) from None
    except RecursionError:
        raise _malformed("it is nested too deeply", next_step=None) from None
    if not isinstance(parsed, dict):
        raise _malformed("it is not an object", next_step='Send {"model": ...}.')
    return parsed


async def _read_bytes(request: Request) -> bytes:
    # What is left unread here uvicorn reads and forgets, so that the client gets to the answer.
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and len(declared) < 20 and int(declared) > MAX_BODY_BYTES:
        raise BodyTooLarge
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge
    return bytes(body)


def _check_media_type(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        shown = media_type.strip()[:60]
        raise UnsupportedMediaType(
            f"The body's content type is {shown!r}." if shown else "The body has no content type.",
            next_step="Send the header 'Content-Type: application/json'.",
        )
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if "charset=" in charset and "charset=utf-8" not in charset and "charset=utf8" not in charset:
        raise UnsupportedMediaType("The body's charset is not UTF-8.", next_step="Encode the body as UTF-8.")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedMediaType(
            f"The content encoding {encoding[:40]!r} is not supported.",
            next_step="Send the body uncompressed.",
        )


def _malformed(why: str, *, next_step: str | None) -> BadRequest:
    return BadRequest(f"The body is not usable JSON: {why}.", code="malformed_json", next_step=next_step)
