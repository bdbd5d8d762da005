"""How much of the machine others used while something was measured.

Where other programs share the cores, a pair of runs counts only if they were nearly idle meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil

NUM_CORES = os.cpu_count() or 1
LOOK_S = 0.5


class ForeignShare:
    """Share of all cores used by others than `pids` (and this process), from creation on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._began_s = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), used_s(self._pids)

    def share(self) -> float:
        foreign_s = _busy_s() - self._busy_s - (used_s(self._pids) - self._own_s)
        return max(0.0, foreign_s) / ((time.monotonic() - self._began_s) * NUM_CORES)


def used_s(pids: Iterable[int]) -> float:
    """CPU seconds that processes have used so far."""
    times = (psutil.Process(pid).cpu_times() for pid in pids if psutil.pid_exists(pid))
    return sum(t.user + t.system for t in times)


def wait_until_quiet(pids: Iterable[int], most: float, patience_s: float) -> bool:
    """Wait until others use less than `most` of the cores; False when that did not happen in time."""
    own, deadline_s = list(pids), time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        look = ForeignShare(own)
        time.sleep(LOOK_S)
        if look.share() < most:
            return True
    return False


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - getattr(times, "guest", 0.0))
