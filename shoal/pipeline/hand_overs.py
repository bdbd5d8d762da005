"""Workers that leave politely and hand their sessions over, as the driver sees them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from shoal.core.placement import WorkerId
from shoal.pipeline.actions import HandedOver
from shoal.wire.messages import HandingOver, StateTaken

DEADLINE_S = 20.0


@dataclass(slots=True)
class _Leaving:
    """expected: the sessions it named, None before it did. taken: those its successor holds."""

    successor: WorkerId
    give_up_s: float
    is_told: bool = False
    expected: frozenset[int] | None = None
    taken: set[int] = field(default_factory=set)


class HandOvers:
    """By worker that leaves."""

    def __init__(self) -> None:
        self._leaving: dict[WorkerId, _Leaving] = {}

    def begin(self, leaving: WorkerId, successor: WorkerId, now_s: float) -> None:
        self._leaving[leaving] = _Leaving(successor, now_s + DEADLINE_S)

    def take_untold(self) -> list[tuple[WorkerId, WorkerId]]:
        """Who leaves and has not been told to whom yet; each is returned once."""
        untold = [(worker, leaving) for worker, leaving in self._leaving.items() if not leaving.is_told]
        for _, leaving in untold:
            leaving.is_told = True
        return [(worker, leaving.successor) for worker, leaving in untold]

    def take(self, message: HandingOver | StateTaken) -> None:
        """A leaving worker names its sessions, or a successor holds one."""
        if isinstance(message, StateTaken):
            for leaving in self._leaving.values():
                if leaving.successor == message.sender:
                    leaving.taken.add(message.session)
        elif (by := self._leaving.get(WorkerId(message.sender))) is not None:
            by.expected = frozenset(message.sessions)

    def finished(
        self, live_sessions: Collection[int], present: Collection[WorkerId], now_s: float
    ) -> list[HandedOver]:
        """Hand-overs that are complete, or that time or a loss has ended; each is returned once."""
        ended = []
        for worker, leaving in list(self._leaving.items()):
            is_complete = leaving.expected is not None and all(
                session in leaving.taken or session not in live_sessions for session in leaving.expected
            )
            is_broken = worker not in present or leaving.successor not in present
            if is_complete or is_broken or leaving.give_up_s <= now_s:
                del self._leaving[worker]
                ended.append(HandedOver(worker, leaving.successor, is_complete))
        return ended
