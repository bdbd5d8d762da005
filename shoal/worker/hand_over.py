"""A polite leave: sessions go to a successor with their state and journal, and nothing is computed
again.

Pure. Between two batches one session at a time is saved and sent, or taken in and restored, so
that streams go on meanwhile; the owner stays the owner until the route changes.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from shoal.core.errors import EngineError
from shoal.core.placement import DRIVER, WorkerId
from shoal.engine.interface import Drawn, Rows
from shoal.wire.messages import HandingOver, State, StateTaken
from shoal.worker.job import SavedState, StateJob
from shoal.worker.outbox import Outbox
from shoal.worker.residency import Residency
from shoal.worker.residency_table import ResidencyTable


class HandOver:
    """One worker's part in handing sessions over, as the one that leaves or as its successor."""

    def __init__(self, outbox: Outbox, sessions: ResidencyTable, row_width: int) -> None:
        self._outbox = outbox
        self._sessions = sessions
        self._row_width = row_width  # of the journal's rows, 0 on the last stage
        self._to_save: deque[tuple[int, WorkerId]] = deque()
        self._to_restore: deque[tuple[State, bytes, Rows | None]] = deque()

    @property
    def num_queued(self) -> int:
        return len(self._to_save) + len(self._to_restore)

    def begin(self, to: WorkerId) -> None:
        """Send every session that holds something to `to`, one after the other."""
        holding = tuple(residency.session for residency in self._sessions if residency.held)
        self._outbox.send(DRIVER, HandingOver(holding, self._outbox.worker))
        self._to_save.extend((session, to) for session in holding)

    def receive(self, state: State, payload: Rows | None) -> None:
        """A session arrives. payload: the engine's state, padded to whole floats, then the journal's
        rows. What cannot be used is not taken: the session is pulled instead."""
        if self._sessions.is_closed(state.session):
            self._confirm(state.session)
            return
        flat = np.empty(0, np.float32) if payload is None else payload.reshape(-1)
        blob_floats = -(-state.state_bytes // 4)
        num_tokens = len(state.tokens)
        num_rows = num_tokens - state.journal_from
        if num_rows < 0 or sum(state.lengths) != num_tokens:
            return
        if flat.size != blob_floats + num_rows * self._row_width:
            return
        blob = flat[:blob_floats].tobytes()[: state.state_bytes]
        rows = flat[blob_floats:].reshape(num_rows, self._row_width) if self._row_width else None
        self._to_restore.append((state, blob, rows))

    def next_job(self, predecessor: WorkerId) -> StateJob | None:
        """The next session to save or restore; None when there is none. predecessor: who is asked for
        what the arriving one lacks."""
        while self._to_restore:
            state, blob, rows = self._to_restore.popleft()
            if self._sessions.is_closed(state.session):
                self._confirm(state.session)
                continue
            residency = self._sessions.find_or_add(state.session, predecessor)
            if residency.held:
                self._confirm(state.session)
                continue
            if residency.opened is None:
                self._sessions.set_opened(residency, state.opened)
            if self._sessions.take_seq(residency):
                assert residency.seq is not None
                ops = self._sessions.take_ops()
                return StateJob(residency, residency.seq, ops, arriving=state, blob=blob, rows=rows)
        while self._to_save:
            session, to = self._to_save.popleft()
            leaving = self._sessions.get(session)
            if leaving is not None and leaving.seq is not None and leaving.held:
                return StateJob(leaving, leaving.seq, self._sessions.take_ops(), to=to)
        return None

    def finish(self, job: StateJob, outcome: SavedState | EngineError) -> bool:
        """A session was saved or restored. True when the session holds more than before."""
        if self._sessions.get(job.residency.session) is not job.residency:
            return False
        if isinstance(outcome, EngineError):
            # The successor pulls what it does not get; what was half restored is not held.
            if job.arriving is not None:
                self._sessions.lose(job.residency)
            return False
        if job.arriving is None:
            self._send(job.residency, job.to, outcome.blob)
            return False
        self._take_in(job.residency, job.arriving, job.rows)
        return True

    def _send(self, residency: Residency, to: WorkerId, blob: bytes) -> None:
        assert residency.opened is not None
        lengths = residency.journal.chunks_from(0, residency.held)
        journal_from = residency.journal.first_whole_chunk()
        state = State(
            residency.session,
            residency.attempt,
            residency.opened,
            tuple(residency.tokens),
            lengths,
            tuple((at, drawn.token, drawn.logprobs) for at, drawn in residency.drawn.items()),
            len(blob),
            self._outbox.worker,
            journal_from,
        )
        padded = blob + bytes(-len(blob) % 4)
        rows = residency.journal.read(journal_from, residency.held)
        payload = np.concatenate([np.frombuffer(padded, np.float32), rows.reshape(-1)])
        self._outbox.send(to, state, payload.reshape(-1, 1))

    def _take_in(self, residency: Residency, state: State, rows: Rows | None) -> None:
        residency.attempt = state.attempt
        position = 0
        for length in state.lengths:
            tokens = state.tokens[position : position + length]
            begin = position - state.journal_from
            part = None if rows is None or begin < 0 else rows[begin : begin + length]
            self._sessions.advance(residency, tokens, part, None)
            position += length
        residency.drawn.update({at: Drawn(token, logprobs) for at, token, logprobs in state.drawn})
        residency.pull = None
        self._confirm(state.session)

    def _confirm(self, session: int) -> None:
        self._outbox.send(DRIVER, StateTaken(session, self._outbox.worker))
