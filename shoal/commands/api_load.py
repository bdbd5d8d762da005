"""Load on an OpenAI-compatible endpoint, and what came back when: the clock of `shoal bench`.

Prompts are token ids, so that their length is known whatever the vocabulary. It speaks to any server
that takes them, so that others can be measured the same way.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from shoal.gateway.client import ClientError

FIRST_TOKEN_ID = 300
"""Below are control tokens and single bytes, in most vocabularies."""

LAST_TOKEN_ID = 5000


@dataclass(slots=True)
class StreamTimes:
    """One answer as its reader saw it, by time.monotonic: arrivals of pieces of text."""

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def first_token_s(self) -> float:
        """Seconds until the first piece."""
        return self.arrivals_s[0] - self.sent_s


def random_prompt(num_tokens: int, generator: random.Random) -> list[int]:
    """A prompt that no cache has seen."""
    return [generator.randrange(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(num_tokens)]


async def stream_one(
    http: httpx.AsyncClient, model: str, prompt: Sequence[int], max_tokens: int, extra: dict[str, object]
) -> StreamTimes:
    """One greedy answer of exactly `max_tokens` tokens. extra: fields that other servers need.

    Raises ClientError.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    times = StreamTimes(time.monotonic())
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise ClientError(f"{response.status_code}: {(await response.aread()).decode()[:300]}")
            async for line in response.aiter_lines():
                _take(line, times)
    except httpx.HTTPError as error:
        raise ClientError(f"{http.base_url} broke off: {error or type(error).__name__}.") from None
    times.ended_s = time.monotonic()
    if not times.arrivals_s:
        raise ClientError("An answer came without any text.")
    return times


def _take(line: str, times: StreamTimes) -> None:
    if not line.startswith("data: {"):
        return
    event = json.loads(line[6:])
    if event.get("error"):
        raise ClientError(f"An answer was broken off: {event['error']}")
    if event.get("choices") and event["choices"][0].get("text"):
        times.arrivals_s.append(time.monotonic())
    if event.get("usage"):
        times.prompt_tokens = event["usage"]["prompt_tokens"]
        times.completion_tokens = event["usage"]["completion_tokens"]


def tokens_per_s(streams: Sequence[StreamTimes]) -> float:
    """All streams together, while all of them were decoding.

    A piece of text is one token, or a few where a character has several: the usage says how many.
    """
    begin_s = max(s.arrivals_s[0] for s in streams)
    end_s = min(s.arrivals_s[-1] for s in streams)
    num_tokens = sum(
        sum(begin_s < at <= end_s for at in s.arrivals_s) * s.completion_tokens / len(s.arrivals_s)
        for s in streams
    )
    return num_tokens / (end_s - begin_s)


async def decode(
    http: httpx.AsyncClient,
    model: str,
    num_streams: int,
    *,
    num_tokens: int,
    generator: random.Random,
    prompt_tokens: int = 16,
    extra: dict[str, object] | None = None,
) -> list[StreamTimes]:
    """Several answers at once, from short prompts."""
    prompts = [random_prompt(prompt_tokens, generator) for _ in range(num_streams)]
    asked = (stream_one(http, model, prompt, num_tokens, extra or {}) for prompt in prompts)
    return list(await asyncio.gather(*asked))


async def prefill(
    http: httpx.AsyncClient,
    model: str,
    num_tokens: int,
    *,
    generator: random.Random,
    extra: dict[str, object] | None = None,
) -> StreamTimes:
    """One answer of a single token behind a long prompt."""
    return await stream_one(http, model, random_prompt(num_tokens, generator), 1, extra or {})
