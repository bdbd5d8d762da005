"""What the stages report of their steps: medians for status, round trips for deadlines. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

from shoal.wire.messages import StageReport

_REMEMBERED_STEPS = 64
_SMOOTHING = 0.2  # weight of the newest round trip


class StageStatistics:
    """Figures of the last steps, by worker, and smoothed round trips, by kind of step."""

    def __init__(self) -> None:
        self._compute_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED_STEPS))
        self._queue_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED_STEPS))
        self._steps: dict[str, int] = defaultdict(int)
        self._round_trip_s: dict[bool, float] = {}

    def add_report(self, report: StageReport) -> None:
        self._compute_s[report.sender].append(report.compute_s)
        self._queue_s[report.sender].append(report.queue_s)
        self._steps[report.sender] += 1

    def add_round_trip(self, seconds: float, *, is_prefill: bool) -> None:
        before = self._round_trip_s.get(is_prefill, seconds)
        self._round_trip_s[is_prefill] = before + _SMOOTHING * (seconds - before)

    def round_trip_s(self, *, is_prefill: bool) -> float:
        """Smoothed seconds from sending a step to its result; 0 before the first."""
        return self._round_trip_s.get(is_prefill, 0.0)

    def num_steps(self, worker: str) -> int:
        return self._steps.get(worker, 0)

    def compute_ms(self, worker: str) -> float | None:
        return _median_ms(self._compute_s.get(worker))

    def queue_ms(self, worker: str) -> float | None:
        return _median_ms(self._queue_s.get(worker))


def _median_ms(seconds: deque[float] | None) -> float | None:
    return 1000 * median(seconds) if seconds else None
