"""All sessions of one worker, the engine sequences they sit on, and those that have ended.

Pure. What must be done to the engine before its next batch is collected in `ops`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from shoal.core.placement import WorkerId
from shoal.engine.interface import Drawn, EngineLimits, Rows
from shoal.wire.messages import Entry, Live, Open
from shoal.worker.job import ClearSeq, TrimSeq
from shoal.worker.journal import Journal
from shoal.worker.journal_budget import JournalBudget
from shoal.worker.residency import Residency

CLOSED_REMEMBERED = 4096


class ResidencyTable:
    """journal_width: of the rows that this stage sends on, 0 on the last stage. journal_bytes: what all
    journals may take together. num_cuts: how often one had to give way."""

    def __init__(self, limits: EngineLimits, journal_width: int, journal_bytes: int) -> None:
        self.budget = JournalBudget.of(
            journal_bytes, 4 * journal_width, limits.max_batch_tokens, limits.max_sequences
        )
        self.num_cuts = 0
        self._limits = limits
        self._journal_width = journal_width
        self._sessions: dict[int, Residency] = {}
        self._closed: OrderedDict[int, None] = OrderedDict()
        self._seq_owners: dict[int, int] = {}  # sessions, by engine sequence
        self._ops: list[ClearSeq | TrimSeq] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Residency]:
        return iter(list(self._sessions.values()))

    def get(self, session: int) -> Residency | None:
        return self._sessions.get(session)

    def is_closed(self, session: int) -> bool:
        """Whether a session is known to have ended."""
        return session in self._closed

    def find_or_add(self, session: int, predecessor: WorkerId) -> Residency:
        """The session, new and not yet opened if it was not there."""
        residency = self._sessions.get(session)
        if residency is None:
            residency = Residency(session, predecessor, Journal(0, 0))
            self._sessions[session] = residency
        return residency

    def set_opened(self, residency: Residency, opened: Open) -> None:
        """Give a session its parameters, and a journal as long as its reservation."""
        residency.opened = opened
        residency.journal = Journal(self._journal_width, opened.reserved_tokens)

    def advance(
        self, residency: Residency, tokens: Sequence[int], rows: Rows | None, drawn: Drawn | None
    ) -> None:
        """A session holds the next positions too, and its journal their rows."""
        if rows is not None:
            self.num_cuts += self.budget.make_room(residency, len(tokens), self._sessions.values())
        residency.advance(tokens, rows, drawn)

    def take_seq(self, residency: Residency) -> bool:
        """Make sure that an opened session sits on the engine sequence that the driver gave it;
        False where this engine has no such sequence or another session sits there."""
        if residency.seq is not None:
            return True
        assert residency.opened is not None
        slot = residency.opened.slot
        if not 0 <= slot < self._limits.max_sequences:
            return False
        if self._seq_owners.setdefault(slot, residency.session) != residency.session:
            return False
        residency.seq = slot
        return True

    def close(self, session: int) -> None:
        """Free everything that a session holds and remember that it has ended. Idempotent."""
        self._closed[session] = None
        if len(self._closed) > CLOSED_REMEMBERED:
            self._closed.popitem(last=False)
        residency = self._sessions.pop(session, None)
        if residency is not None and residency.seq is not None:
            self._ops.append(ClearSeq(residency.seq))
            del self._seq_owners[residency.seq]

    def keep_only(self, live: Live) -> None:
        """Close what the driver no longer lists; sessions newer than its list stay."""
        listed = set(live.sessions)
        for session in [s for s in self._sessions if s <= live.newest and s not in listed]:
            self.close(session)

    def lose(self, residency: Residency) -> None:
        """State that is undefined, or without its journal, is not held."""
        if residency.seq is not None:
            self._ops.append(ClearSeq(residency.seq))
        drawn = dict(residency.drawn)
        residency.forget(0)
        residency.drawn = drawn  # what was drawn and sent stays true whatever becomes of the state

    def take_attempt(self, residency: Residency, entry: Entry) -> bool:
        """Move a session to an entry's attempt, trimmed to its start; False for an older attempt."""
        if entry.attempt < residency.attempt:
            return False
        if entry.attempt > residency.attempt:
            residency.attempt = entry.attempt
            residency.pull = None
            if entry.start < residency.held:
                self._trim(residency, entry.start)
        return True

    def take_ops(self) -> tuple[ClearSeq | TrimSeq, ...]:
        """What the engine must do before its next batch, in order; taken once."""
        ops, self._ops = tuple(self._ops), []
        return ops

    @property
    def has_ops(self) -> bool:
        return bool(self._ops)

    def _trim(self, residency: Residency, length: int) -> None:
        if self._limits.can_trim and residency.seq is not None:
            self._ops.append(TrimSeq(residency.seq, length))
            residency.forget(length)
        else:
            self.lose(residency)
