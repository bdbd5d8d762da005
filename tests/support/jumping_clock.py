"""The time module as a process sees it whose machine sleeps now and then."""

from __future__ import annotations

import time


class JumpingClock:
    """Stands in for `time` in one module."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._slept_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._slept_s

    def jump(self, seconds: float) -> None:
        """The machine has slept for so long."""
        self._slept_s += seconds
