"""A clock for judging others' silence, which stands still while this process does. Pure."""

from __future__ import annotations

LONGEST_GAP_S = 0.5


class AwakeClock:
    """Counts no more than `longest_gap_s` between two readings.

    Who was stopped, starved or on a machine that slept for a minute has heard nobody for that minute; but
    that says nothing about the others, whose answers may lie in its sockets. For one loop, which reads it
    at least every `longest_gap_s`.
    """

    def __init__(self, now_s: float, longest_gap_s: float = LONGEST_GAP_S) -> None:
        self.awake_s = now_s  # at the last reading
        self._read_s = now_s
        self._longest_gap_s = longest_gap_s

    def read(self, now_s: float) -> float:
        """The awake time at `now_s`, which is later than at the reading before."""
        self.awake_s += min(now_s - self._read_s, self._longest_gap_s)
        self._read_s = now_s
        return self.awake_s
