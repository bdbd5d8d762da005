"""A hypothesis judged by measurement: the running server at a URL is timed as a client sees it.

Whether that server runs the hypothesis' machines and model is the asker's word; its model's name is
shown beside the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from shoal.core.errors import ConfigError
from shoal.gateway.client import ApiClient, Endpoint
from shoal.planner.hypothesis import Figures, Hypothesis, Known

ANSWER_TOKENS = 64
MIN_PIECES = 8  # fewer say nothing about the time between two
TIMES_ALONE = 3
RUNS_DIFFER = 1.1  # beyond what was seen: the same machines differ by a tenth from hour to hour


@dataclass(frozen=True, slots=True)
class Timing:
    """One streamed answer, times by the clock. pieces_s: when each piece of text came, about a token each."""

    asked_s: float
    pieces_s: tuple[float, ...]

    @property
    def token_s(self) -> float:
        return (self.pieces_s[-1] - self.pieces_s[0]) / max(1, len(self.pieces_s) - 1)

    @property
    def first_token_s(self) -> float:
        return self.pieces_s[0] - self.asked_s


class LiveMeasurement:
    """Sends a few requests one after the other, then `streams` at once. clock: seconds, monotonic."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock

    def figures(self, hypothesis: Hypothesis) -> Figures:
        """Raises ClientError where the server does not answer, ConfigError where it says too little."""
        with ApiClient(self._endpoint) as client:
            models = client.models()
        if not models:
            raise ConfigError(f"{self._endpoint.server_root} serves no model.")
        alone = [self._timed(models[0], hypothesis.prompt_tokens) for _ in range(TIMES_ALONE)]
        together = self._timed_together(models[0], hypothesis)
        return Figures(
            method=f"measurement of {models[0]} at {self._endpoint.server_root}",
            holds=True,
            why_not=None,
            known={
                "token_time": _known([timing.token_s for timing in alone]),
                "first_token": _known([timing.first_token_s for timing in alone]),
                "throughput": _known([pieces_per_s(together)]),
            },
            server={},
        )

    def _timed_together(self, model: str, hypothesis: Hypothesis) -> list[Timing]:
        with ThreadPoolExecutor(hypothesis.streams) as pool:
            waiting = [
                pool.submit(self._timed, model, hypothesis.prompt_tokens) for _ in range(hypothesis.streams)
            ]
            return [timing.result() for timing in waiting]

    def _timed(self, model: str, prompt_tokens: int) -> Timing:
        body: dict[str, object] = {
            "model": model,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Count from one upwards. " + "and " * prompt_tokens}],
        }
        asked_s = self._clock()
        with ApiClient(self._endpoint) as client, closing(client.stream_chat(body)) as stream:
            pieces_s = tuple(self._clock() for _ in stream)
        if len(pieces_s) < MIN_PIECES:
            raise ConfigError(f"{model} answered with {len(pieces_s)} pieces of text, too few to time.")
        return Timing(asked_s, pieces_s)


def pieces_per_s(timings: Sequence[Timing]) -> float:
    """Pieces of all streams over the time in which all of them decoded; over all of it where some had
    to wait until others had ended."""
    since_s = max(timing.pieces_s[0] for timing in timings)
    until_s = min(timing.pieces_s[-1] for timing in timings)
    inside = [sum(since_s < at_s <= until_s for at_s in timing.pieces_s) for timing in timings]
    if min(inside) >= MIN_PIECES:
        return sum(inside) / (until_s - since_s)
    first_s = min(timing.pieces_s[0] for timing in timings)
    last_s = max(timing.pieces_s[-1] for timing in timings)
    return sum(len(timing.pieces_s) - 1 for timing in timings) / (last_s - first_s)


def _known(values: Sequence[float]) -> Known:
    why = f"{len(values)} measured, and a tenth beyond" if len(values) > 1 else "measured, a tenth either way"
    return Known(median(values), min(values) / RUNS_DIFFER, max(values) * RUNS_DIFFER, "measurement", why)
