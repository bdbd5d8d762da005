"""One streamed completion with the moment of each piece: what a client of ours would see."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import httpx

READ_DEADLINE_S = 600.0


@dataclass
class Timed:
    """began_s: when it was asked for. times_s: of each piece. error: what broke it off."""

    began_s: float
    request_id: str = ""
    text: str = ""
    times_s: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def first_s(self) -> float:
        return self.times_s[0] - self.began_s

    @property
    def step_s(self) -> float:
        return median(b - a for a, b in itertools.pairwise(self.times_s))

    def stall_s(self, fault_s: float) -> float:
        """The longest silence that ended after the fault."""
        return max((b - a for a, b in itertools.pairwise(self.times_s) if b > fault_s), default=0.0)


def complete(
    url: str,
    model: str,
    prompt: Sequence[int],
    max_tokens: int,
    on_piece: Callable[[int], None] = lambda num_pieces: None,
) -> Timed:
    """Greedy, to the last token. on_piece: called after each piece with how many there were."""
    body = {
        "model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    timed = Timed(time.monotonic())
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=READ_DEADLINE_S) as response:
        timed.request_id = response.headers.get("x-request-id", "")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                timed.error = event["error"]["message"]
            for choice in event.get("choices", ()):
                if choice["text"]:
                    timed.text += choice["text"]
                    timed.times_s.append(time.monotonic())
                    on_piece(len(timed.times_s))
    return timed
