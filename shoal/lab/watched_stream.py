"""One streamed answer, with the moment at which each piece arrived.

Knows the API and nothing of faults. For experiments and benchmarks; it keeps all of an answer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from shoal.core.errors import ShoalError
from shoal.gateway.client import ApiClient, Endpoint


@dataclass(slots=True)
class WatchedStream:
    """pieces: text with its arrival on the monotonic clock, in order. error: what ended it early."""

    pieces: list[tuple[float, str]] = field(default_factory=list)
    error: ShoalError | None = None

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def step_s(self) -> float:
        """The median time between two pieces; 0 for fewer than two."""
        return median(_gaps([at_s for at_s, _ in self.pieces])) if len(self.pieces) > 1 else 0.0

    def stall_s(self, fault_s: float) -> float:
        """The longest silence that lasted beyond the moment of a fault; where nothing had come by
        then, from that moment on. 0 where all had come."""
        before = [arrival_s for arrival_s, _ in self.pieces if arrival_s <= fault_s]
        after = [arrival_s for arrival_s, _ in self.pieces if arrival_s > fault_s]
        began_s = before[-1] if before else fault_s
        return max(_gaps([began_s, *after]), default=0.0)


def _gaps(times_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times_s)]


class StreamThread(threading.Thread):
    """Asks for an answer and reads it to its end; `stream` grows meanwhile."""

    def __init__(self, endpoint: Endpoint, body: dict[str, object]) -> None:
        super().__init__(name="shoal-watched-stream", daemon=True)
        self.stream = WatchedStream()
        self._endpoint = endpoint
        self._body = body
        self._moved = threading.Condition()
        self._is_over = False

    def run(self) -> None:
        try:
            with ApiClient(self._endpoint) as client:
                for text in client.stream_chat(self._body):
                    with self._moved:
                        self.stream.pieces.append((time.monotonic(), text))
                        self._moved.notify_all()
        except ShoalError as error:
            self.stream.error = error
        finally:
            with self._moved:
                self._is_over = True
                self._moved.notify_all()

    def wait_for_pieces(self, count: int) -> bool:
        """Wait until so many pieces have come; False when the answer is over before."""
        with self._moved:
            self._moved.wait_for(lambda: self._is_over or len(self.stream.pieces) >= count)
            return not self._is_over
