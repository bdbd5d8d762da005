"""A hypothesis judged by measurement: the running server at a URL is timed as a client sees it.

Whether that server runs the hypothesis' machines and model is the asker's word; its model's name is
shown beside the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from shoal.core.errors import ConfigError
from shoal.gateway.client import ApiClient, Endpoint
from shoal.planner.hypothesis import Figures, Hypothesis, Known

ANSWER_TOKENS = 64
MIN_PIECES = 8  # fewer say nothing about the time between two
RUNS_DIFFER = 1.1  # two runs on the same machines differ by up to a tenth


@dataclass(frozen=True, slots=True)
class Timing:
    """One streamed answer, times by the clock. num_pieces: of text, about a token each."""

    asked_s: float
    first_s: float
    last_s: float
    num_pieces: int

    @property
    def token_s(self) -> float:
        return (self.last_s - self.first_s) / max(1, self.num_pieces - 1)


class LiveMeasurement:
    """Sends one request, then `streams` at once. clock: seconds, monotonic."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock

    def figures(self, hypothesis: Hypothesis) -> Figures:
        """Raises ClientError where the server does not answer, ConfigError where it says too little."""
        with ApiClient(self._endpoint) as client:
            models = client.models()
        if not models:
            raise ConfigError(f"{self._endpoint.server_root} serves no model.")
        alone = self._timed(models[0], hypothesis.prompt_tokens)
        if alone.num_pieces < MIN_PIECES:
            raise ConfigError(
                f"{models[0]} answered with {alone.num_pieces} pieces of text, too few to time."
            )
        return Figures(
            method=f"measurement of {models[0]} at {self._endpoint.server_root}",
            holds=True,
            why_not=None,
            known={
                "token_time": Known(alone.token_s, RUNS_DIFFER),
                "first_token": Known(alone.first_s - alone.asked_s, RUNS_DIFFER),
                "throughput": Known(self._throughput(models[0], hypothesis), RUNS_DIFFER),
            },
            server={},
        )

    def _throughput(self, model: str, hypothesis: Hypothesis) -> float:
        """Pieces a second, summed over streams that decode at the same time."""
        with ThreadPoolExecutor(hypothesis.streams) as pool:
            waiting = [
                pool.submit(self._timed, model, hypothesis.prompt_tokens) for _ in range(hypothesis.streams)
            ]
            timings = [timing.result() for timing in waiting]
        return sum(1 / timing.token_s for timing in timings if timing.num_pieces >= MIN_PIECES)

    def _timed(self, model: str, prompt_tokens: int) -> Timing:
        body: dict[str, object] = {
            "model": model,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Count from one upwards. " + "and " * prompt_tokens}],
        }
        asked_s = self._clock()
        times: list[float] = []
        with ApiClient(self._endpoint) as client, closing(client.stream_chat(body)) as stream:
            for _ in stream:
                times.append(self._clock())
        if not times:
            return Timing(asked_s, asked_s, asked_s, 0)
        return Timing(asked_s, times[0], times[-1], len(times))
