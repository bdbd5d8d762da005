"""Sessions that have ended but may still take room on a stage. Pure.

A `Close` may be overtaken by the next session's first step, or be lost with its worker. So room
is given to others only when every stage has confirmed, and who does not confirm is told again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shoal.core.placement import WorkerId


@dataclass(slots=True)
class _Closing:
    workers: set[WorkerId]
    tell_again_s: float
    num_told: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """A session's end that `workers` must be told of now. is_last_time: they have been told as
    often as allowed before."""

    session: int
    workers: tuple[WorkerId, ...]
    is_last_time: bool


class Closings:
    """tell_again_s: how long a worker may take to confirm. max_told: then it counts as cut off."""

    def __init__(self, tell_again_s: float, max_told: int) -> None:
        self._tell_again_s = tell_again_s
        self._max_told = max_told
        self._closings: dict[int, _Closing] = {}

    def begin(self, session: int, workers: Collection[WorkerId], now_s: float) -> None:
        """A session has ended; `due` says whom to tell."""
        self._closings[session] = _Closing(set(workers), now_s)

    def due(self, now_s: float) -> list[Told]:
        """Everybody who must be told now, for the first time or again."""
        told = []
        for session, closing in self._closings.items():
            if closing.tell_again_s > now_s:
                continue
            is_last_time = closing.num_told >= self._max_told
            closing.num_told = 0 if is_last_time else closing.num_told + 1
            closing.tell_again_s = now_s + self._tell_again_s
            told.append(Told(session, tuple(sorted(closing.workers)), is_last_time))
        return told

    def confirm(self, session: int, worker: WorkerId) -> bool:
        """A worker holds nothing of a session any more. True when that was the last one."""
        closing = self._closings.get(session)
        if closing is None:
            return False
        closing.workers.discard(worker)
        return self._is_over(session, closing)

    def keep_only(self, present: Collection[WorkerId]) -> list[int]:
        """Workers that have left need not confirm; returns the sessions that are closed by that."""
        over = []
        for session, closing in list(self._closings.items()):
            closing.workers.intersection_update(present)
            if self._is_over(session, closing):
                over.append(session)
        return over

    def _is_over(self, session: int, closing: _Closing) -> bool:
        if closing.workers:
            return False
        del self._closings[session]
        return True
