"""Which steps the driver must still be told of: that they have arrived here.

The report of a step says so too, and most steps are computed soon: they are never acknowledged
apart. Pure.
"""

from __future__ import annotations

from shoal.core.placement import WorkerId
from shoal.wire.messages import Received, Step

ACKNOWLEDGE_AFTER_S = 0.05
"""Far below the time in which the driver wants to hear of a hop, far above a step of decoding."""


class Acknowledgements:
    """Those owed by `worker`, oldest first."""

    def __init__(self, worker: WorkerId) -> None:
        self._worker = worker
        self._owed: dict[int, tuple[float, int]] = {}  # by step: when it is due, and the step's epoch

    @property
    def next_due_s(self) -> float | None:
        """When the next one must be sent; None while none is owed."""
        return next((due_s for due_s, _ in self._owed.values()), None)

    def owe(self, step: Step, now_s: float) -> None:
        """A step has arrived. One that arrives again is owed since then."""
        self._owed.pop(step.step_id, None)
        self._owed[step.step_id] = (now_s + ACKNOWLEDGE_AFTER_S, step.epoch)

    def settle(self, step_id: int) -> None:
        """The driver is told otherwise."""
        self._owed.pop(step_id, None)

    def take_due(self, now_s: float) -> list[Received]:
        """Those that must be sent now; they are owed no more."""
        due = [step_id for step_id, (due_s, _) in self._owed.items() if due_s <= now_s]
        return [Received(self._owed.pop(step_id)[1], step_id, self._worker) for step_id in due]
