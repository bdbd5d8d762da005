"""What one worker holds of one session: its tokens, its journal, and what it waits for.

Pure bookkeeping. The rules that move it stand in worker/protocol.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.core.placement import WorkerId
from shoal.engine.interface import Drawn, Rows
from shoal.wire.messages import Entry, Open, Step
from shoal.worker.journal import Journal


@dataclass(slots=True)
class Part:
    """One entry with the rows that came with it; None where the stage embeds tokens itself."""

    entry: Entry
    rows: Rows | None


@dataclass(slots=True)
class Task:
    """Parts of one step waiting to be computed together.

    step: where they came from and where they go. forward: whether outputs are sent on; what was
    pulled is not. rows: of all parts, where they arrived as one array.
    """

    step: Step
    parts: list[Part]
    arrived_s: float
    forward: bool = True
    rows: Rows | None = None


@dataclass(slots=True)
class PullInProgress:
    """Waiting for the predecessor to send this session's input up to `stop`. tries: since the predecessor
    answered any pull. is_held_back: not asked for more, so that a successor can come after."""

    stop: int
    deadline_s: float
    tries: int = 0
    queued_parts: int = 0
    is_held_back: bool = False


@dataclass(slots=True)
class Waiter:
    """A successor that asked for outputs which are not there yet. window: tokens that it takes at once."""

    attempt: int
    start: int
    stop: int
    exact: bool
    window: int


@dataclass(slots=True)
class Residency:
    """One session on this worker.

    tokens: ids of all positions held; their number is what DESIGN calls `held`. drawn: on the
    last stage, what was picked for each position. opened: None until the driver's `Open` came.
    failures: computations lost in a row, by the position that they began at; bounded, so that one
    bad session cannot spin. successor_held: what a successor held that pulls this session and has not
    all of it yet: it is not to be left behind farther than the journal reaches.
    """

    session: int
    predecessor: WorkerId
    journal: Journal
    opened: Open | None = None
    open_deadline_s: float = 0.0
    open_tries: int = 0
    seq: int | None = None
    attempt: int = 0
    tokens: list[int] = field(default_factory=list)
    drawn: dict[int, Drawn] = field(default_factory=dict)
    parked: dict[int, Task] = field(default_factory=dict)
    pull: PullInProgress | None = None
    waiters: dict[WorkerId, Waiter] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    successor_held: int | None = None

    @property
    def held(self) -> int:
        return len(self.tokens)

    def holds(self, start: int, tokens: tuple[int, ...]) -> bool:
        """Whether the held positions from `start` on carry just these tokens."""
        overlap = min(start + len(tokens), self.held) - start
        return overlap <= 0 or tuple(self.tokens[start : start + overlap]) == tokens[:overlap]

    def advance(self, tokens: Sequence[int], rows: Rows | None, drawn: Drawn | None) -> None:
        """Take in what was computed for the next positions, and the token drawn behind them."""
        # Only this position's: after a loss the ground before it is gone over again and again.
        self.failures.pop(self.held, None)
        self.tokens.extend(tokens)
        self.journal.append(len(tokens), rows)
        if drawn is not None:
            self.drawn[self.held] = drawn

    def failed(self) -> int:
        """Count a lost computation at the next position; how many that makes there, in a row."""
        self.failures[self.held] = self.failures.get(self.held, 0) + 1
        return self.failures[self.held]

    def forget(self, length: int) -> None:
        """Drop all positions from `length` on, with their journal and draws."""
        del self.tokens[length:]
        self.journal.trim(length)
        for position in [p for p in self.drawn if p > length]:
            del self.drawn[position]
