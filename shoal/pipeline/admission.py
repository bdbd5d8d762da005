"""Who may come in: slots and cache cells, reserved before anything is computed.

Pure. A stage that ran out of cells would fail a whole batch, so the driver alone admits, by the
smallest stage, and reserves prompt plus max_tokens for as long as a session lives. A slot is the
number of an engine sequence: all stages keep a session on the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.core.journal_room import max_sessions
from shoal.engine.interface import EngineLimits


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the smallest stage or standby can hold. batch_tokens: of one step. row_bytes: of the
    widest boundary row."""

    cells: int
    sequences: int
    batch_tokens: int
    row_bytes: int = 0

    @classmethod
    def smallest(cls, limits: Iterable[EngineLimits], journal_bytes: int) -> Capacity:
        """The capacity of a pipeline of such stages, whose journals may each take `journal_bytes`: as many
        sequences as have room there with their journals cut as far as may be."""
        stages = list(limits)
        # The last stage journals no rows, but counting it like the others keeps capacity the same for all.
        journals = [max_sessions(journal_bytes, 4 * s.row_width_out, s.max_batch_tokens) for s in stages]
        return cls(
            cells=min(stage.cells for stage in stages),
            sequences=min(*journals, *(stage.max_sequences for stage in stages)),
            batch_tokens=min(stage.max_batch_tokens for stage in stages),
            row_bytes=max(4 * stage.row_width_out for stage in stages),
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one session has been promised."""

    slot: int
    cells: int


class Admission:
    """Counts what is reserved; `capacity` may change with the placement."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._reserved: dict[int, Reservation] = {}

    @property
    def cells_reserved(self) -> int:
        return sum(reservation.cells for reservation in self._reserved.values())

    @property
    def num_sequences(self) -> int:
        return len(self._reserved)

    def try_reserve(self, session: int, tokens: int) -> int | None:
        """Set `tokens` cells and the lowest free slot aside, and return the slot; None, and
        nothing changed, when they are not free."""
        taken = {reservation.slot for reservation in self._reserved.values()}
        slot = next((s for s in range(self.capacity.sequences) if s not in taken), None)
        if slot is None or self.cells_reserved + tokens > self.capacity.cells:
            return None
        self._reserved[session] = Reservation(slot, tokens)
        return slot

    def release(self, session: int) -> None:
        """Give a session's reservation back. Idempotent."""
        self._reserved.pop(session, None)
