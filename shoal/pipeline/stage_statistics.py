"""What the stages report of their steps: medians for status, round trips for deadlines. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from shoal.wire.messages import StageReport

_REMEMBERED_STEPS = 64
_SMOOTHING = 0.2  # weight of the newest round trip
SLOW_FACTOR = 3.0  # a stage that takes so much longer than it did is reported as slow
_RECENT_STEPS = 8


@dataclass(frozen=True, slots=True)
class ReplayEstimate:
    """What coming back costs besides loading. step_s: one step's trip through the pipeline.
    pull_s: computing all live sessions' tokens on the slowest stage again."""

    step_s: float
    pull_s: float


class StageStatistics:
    """Figures of the last steps, by worker, and smoothed round trips, by kind of step."""

    def __init__(self) -> None:
        self._compute_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED_STEPS))
        self._queue_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED_STEPS))
        self._steps: dict[str, int] = defaultdict(int)
        self._round_trip_s: dict[bool, float] = {}
        self._s_per_token: dict[str, float] = {}  # of prompts
        self._s_per_step: dict[str, float] = {}  # of answers
        # How much longer than the quickest of its size each of the last steps took, by worker.
        self._quickest_s: dict[tuple[str, int], float] = {}
        self._slowness: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT_STEPS))

    def keep_only(self, workers: Collection[str]) -> None:
        """Forget workers that have left: incarnations come and go for as long as a head lives."""
        for table in (
            self._compute_s,
            self._queue_s,
            self._steps,
            self._s_per_token,
            self._s_per_step,
            self._slowness,
        ):
            for worker in [w for w in table if w not in workers]:
                del table[worker]
        for key in [k for k in self._quickest_s if k[0] not in workers]:
            del self._quickest_s[key]

    def is_slow(self, worker: str) -> bool:
        """Whether a stage's last steps took far longer than steps of their size took before."""
        slowness = self._slowness.get(worker, ())
        return len(slowness) == _RECENT_STEPS and median(slowness) > SLOW_FACTOR

    def replay_estimate(self, num_in_chunks: int, num_singly: int) -> ReplayEstimate:
        """What it would cost to compute so many tokens again on the slowest stage: in chunks as of a
        prompt, and one by one."""
        pulls_s = [
            num_in_chunks * s_per_token + num_singly * self._s_per_step.get(worker, s_per_token)
            for worker, s_per_token in self._s_per_token.items()
        ]
        return ReplayEstimate(self.round_trip_s(is_prefill=False), max(pulls_s, default=0.0))

    def add_report(self, report: StageReport, num_tokens: int, *, is_prefill: bool) -> None:
        """num_tokens: of the step that the stage has computed."""
        self._compare(report, num_tokens)
        # Steps of answers say nothing of chunks: a few tokens take hardly longer than one.
        if is_prefill and num_tokens:
            _smooth(self._s_per_token, report.sender, report.compute_s / num_tokens)
        elif num_tokens:
            _smooth(self._s_per_step, report.sender, report.compute_s)
        self._compute_s[report.sender].append(report.compute_s)
        self._queue_s[report.sender].append(report.queue_s)
        self._steps[report.sender] += 1

    def _compare(self, report: StageReport, num_tokens: int) -> None:
        if num_tokens == 0:
            return
        key = (report.sender, num_tokens)
        quickest_s = min(report.compute_s, self._quickest_s.get(key, report.compute_s))
        self._quickest_s[key] = quickest_s
        self._slowness[report.sender].append(report.compute_s / quickest_s)

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


def _smooth(table: dict[str, float], key: str, newest: float) -> None:
    before = table.get(key, newest)
    table[key] = before + _SMOOTHING * (newest - before)


def _median_ms(seconds: deque[float] | None) -> float | None:
    return 1000 * median(seconds) if seconds else None
