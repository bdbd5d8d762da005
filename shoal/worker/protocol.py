"""The worker's policy: what to compute, answer, park, pull, drop or refuse.

The entry rule (DESIGN section 5), applied to each entry when it is about to be computed:
`start` = held: compute, journal, send on. `start` < held, same tokens and attempt: answer from
the journal. `start` > held: park it and pull what is missing from the predecessor.

Pure: messages and clock readings in, `Send`s and `Job`s out. It never touches a socket, a
thread or an engine; slice_worker.py runs it for real, the virtual cluster in virtual time.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.errors import EngineError
from shoal.core.placement import DRIVER, WorkerId
from shoal.core.sequence import SamplingParams
from shoal.engine.interface import Chunk, Computed, Draw, EngineLimits, Rows
from shoal.wire.messages import (
    Close,
    Closed,
    Entry,
    Live,
    Message,
    NeedOpen,
    Open,
    Output,
    Pull,
    Received,
    Refill,
    Refused,
    Result,
    StageReport,
    Step,
    ToWorker,
)
from shoal.worker.job import ClearSeq, Job, Planned, TrimSeq
from shoal.worker.journal import Journal
from shoal.worker.residency import Part, PullInProgress, Residency, Task, Waiter

MAX_QUEUED_TASKS = 256  # far above any driver's steps in flight; past it a task is dropped and sent again
MAX_PARKED_PARTS = 64
MAX_PULL_TRIES = 20
MAX_OPEN_TRIES = 20
MAX_FAILURES = 3
CLOSED_REMEMBERED = 4096
REFILL_WINDOW_TOKENS = 1024  # 6 MiB of rows at a width of 1,536


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the wire, with the rows that travel behind it."""

    to: WorkerId
    message: Message
    rows: Rows | None = None


_NO_TASK = Task(Step(0, 0, DRIVER, (), ()), [], 0.0, forward=False)


class WorkerCore:
    """One worker's decisions.

    Feed it with `receive`, `finish` and `tick`; take `next_job` whenever the engine is free, and
    `take_sends` after every call. predecessor: who is asked for missing input of a session of
    which no entry has come yet. retry_after_s: patience for a pull or an open.
    """

    def __init__(
        self,
        worker: WorkerId,
        *,
        is_first: bool,
        is_last: bool,
        limits: EngineLimits,
        predecessor: WorkerId = DRIVER,
        retry_after_s: float = 2.0,
    ) -> None:
        self.worker = worker
        self.epoch = 0
        self.predecessor = predecessor
        self.last_step_received = 0
        self.dropped_tasks = 0
        self._is_first = is_first
        self._is_last = is_last
        self._limits = limits
        self._retry_after_s = retry_after_s
        self._sessions: dict[int, Residency] = {}
        self._closed: OrderedDict[int, None] = OrderedDict()
        self._free_seqs = list(range(limits.max_sequences))
        self._queue: deque[Task] = deque()
        self._ops: list[ClearSeq | TrimSeq] = []
        self._sends: list[Send] = []

    # ------------------------------------------------------------ what the shell calls

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def journal_bytes(self) -> int:
        return sum(r.journal.allocated_bytes for r in self._sessions.values())

    def take_sends(self) -> list[Send]:
        """Everything to be sent since the last call, in order."""
        sends, self._sends = self._sends, []
        return sends

    def receive(self, message: ToWorker, rows: Rows | None, now_s: float) -> None:
        """Take one message in. rows: `[num_tokens, row_width_in]` of a step or refill, or None."""
        match message:
            case Step():
                self._receive_step(message, rows, now_s)
            case Refill():
                self._receive_refill(message, rows, now_s)
            case Pull():
                self._receive_pull(message, now_s)
            case Open():
                self._open(message, now_s)
            case Close():
                for session in message.sessions:
                    self._close(session)
                self._sends.append(Send(DRIVER, Closed(message.sessions, self.worker)))
            case Live():
                self._keep_only(message)

    def next_job(self, now_s: float) -> Job | None:
        """The next work for the engine, or None. Call it only while the engine is free."""
        while self._queue:
            task = self._queue.popleft()
            job = self._plan(task, now_s)
            if job is not None:
                return job
        if self._ops:
            return Job(_NO_TASK, self._take_ops(), (), None)
        return None

    def finish(self, job: Job, outcome: Computed | EngineError, compute_s: float, now_s: float) -> None:
        """Take a job's outcome in: journal it, send it on, and let what waited for it go."""
        if isinstance(outcome, EngineError):
            self._fail(job, outcome, now_s)
            return
        offset = 0
        for planned in job.planned:
            if planned.chunk is None:
                continue
            chunk = job.chunks[planned.chunk]
            count = len(chunk.tokens)
            rows = None if outcome.rows is None else outcome.rows[offset : offset + count]
            self._advance(planned.residency, chunk, rows, outcome.drawn[planned.chunk])
            offset += count
        if job.task.forward and job.planned:
            self._send_on(job.task, job.planned, outcome)
            self._report(job, compute_s)
        for planned in job.planned:
            if job.task.forward:
                self._moved(planned.residency, now_s)
            else:
                self._pulled_part_done(planned.residency.session, now_s)

    def tick(self, now_s: float) -> None:
        """Ask again for what has not come: pulls and opens past their deadline."""
        for residency in list(self._sessions.values()):
            if residency.opened is None and residency.open_deadline_s <= now_s:
                self._need_open(residency, now_s)
            pull = residency.pull
            if pull is not None and pull.queued_parts == 0 and pull.deadline_s <= now_s:
                self._send_pull(residency, pull, now_s)

    # ------------------------------------------------------------ messages in

    def _receive_step(self, step: Step, rows: Rows | None, now_s: float) -> None:
        if step.epoch < self.epoch:
            return  # the route it names has ended; the driver sends its entries along the new one
        self.epoch = step.epoch
        self.last_step_received = step.step_id
        self._sends.append(Send(DRIVER, Received(step.epoch, step.step_id, self.worker)))
        for opened in step.opens:
            self._open(opened, now_s)
        parts = self._split(step.entries, rows)
        if parts is None:
            for entry in step.entries:
                self._refuse(entry.session, "the rows behind the step do not fit its entries")
            return
        if len(self._queue) >= MAX_QUEUED_TASKS:
            self.dropped_tasks += 1
            return
        for entry in step.entries:
            residency = self._sessions.get(entry.session)
            if residency is not None:
                residency.predecessor = WorkerId(step.sender)
        self._queue.append(Task(step, parts, now_s, rows=rows))

    def _split(self, entries: Sequence[Entry], rows: Rows | None) -> list[Part] | None:
        if self._is_first:
            return [Part(entry, None) for entry in entries] if rows is None else None
        total = sum(len(entry.tokens) for entry in entries)
        if rows is None or rows.shape != (total, self._limits.row_width_in):
            return None
        parts, offset = [], 0
        for entry in entries:
            parts.append(Part(entry, rows[offset : offset + len(entry.tokens)]))
            offset += len(entry.tokens)
        return parts

    def _receive_refill(self, refill: Refill, rows: Rows | None, now_s: float) -> None:
        residency = self._sessions.get(refill.session)
        if residency is None or residency.pull is None or residency.pull.queued_parts:
            return
        stop = refill.start + len(refill.tokens)
        if refill.attempt != residency.attempt or not refill.start <= residency.held < stop:
            return
        entries, position = [], 0
        for length in refill.lengths:
            tokens = refill.tokens[position : position + length]
            entries.append(Entry(refill.session, refill.attempt, refill.start + position, tokens))
            position += length
        parts = self._split(entries, rows)
        if parts is None or position != len(refill.tokens):
            self._refuse(refill.session, "the rows behind a refill do not fit its tokens")
            return
        residency.pull.queued_parts = len(parts)
        step = Step(refill.epoch, 0, refill.sender, (), ())
        # In front: entries that wait for these positions would only be parked.
        self._queue.extendleft(Task(step, [part], now_s, forward=False) for part in reversed(parts))

    def _receive_pull(self, pull: Pull, now_s: float) -> None:
        if pull.session in self._closed:
            return
        residency = self._sessions.get(pull.session)
        if residency is None:
            residency = self._admit(pull.session, None)
        requester = WorkerId(pull.sender)
        residency.waiters[requester] = Waiter(pull.attempt, pull.start, pull.stop)
        self._serve_waiters(residency)
        if requester in residency.waiters and residency.opened is not None and not self._expects(residency):
            self._pull(residency, pull.stop, now_s)

    def _expects(self, residency: Residency) -> bool:
        """Whether something that is queued or asked for already will move this session on."""
        if residency.pull is not None:
            return True
        return any(part.entry.session == residency.session for task in self._queue for part in task.parts)

    def _open(self, opened: Open, now_s: float) -> None:
        if opened.session in self._closed:
            return
        residency = self._sessions.get(opened.session)
        if residency is None:
            self._admit(opened.session, opened)
            return
        if residency.opened is not None:
            return
        residency.opened = opened
        residency.journal = self._journal(opened)
        self._release_parked(residency, everything=True)
        for waiter in residency.waiters.values():
            self._pull(residency, waiter.stop, now_s)

    def _admit(self, session: int, opened: Open | None) -> Residency:
        journal = Journal(0, 0) if opened is None else self._journal(opened)
        residency = Residency(session, self.predecessor, journal, opened)
        self._sessions[session] = residency
        return residency

    def _journal(self, opened: Open) -> Journal:
        return Journal(0 if self._is_last else self._limits.row_width_out, opened.reserved_tokens)

    def _close(self, session: int) -> None:
        self._closed[session] = None
        if len(self._closed) > CLOSED_REMEMBERED:
            self._closed.popitem(last=False)
        residency = self._sessions.pop(session, None)
        if residency is not None and residency.seq is not None:
            self._ops.append(ClearSeq(residency.seq))
            heapq.heappush(self._free_seqs, residency.seq)

    def _keep_only(self, live: Live) -> None:
        listed = set(live.sessions)
        for session in [s for s in self._sessions if s <= live.newest and s not in listed]:
            self._close(session)

    # ------------------------------------------------------------ the entry rule

    def _plan(self, task: Task, now_s: float) -> Job | None:
        """Apply the entry rule to each part; None when nothing is left to compute."""
        planned: list[Planned] = []
        chunks: list[Chunk] = []
        later: list[Part] = []
        for part in task.parts:
            if self._must_wait(part, chunks, planned):
                later.append(part)
                continue
            residency = self._ready(task, part, now_s)
            if residency is None:
                if not task.forward:
                    self._pulled_part_done(part.entry.session, now_s)
                continue
            if part.entry.stop <= residency.held:
                planned.append(Planned(part, residency, None))
            else:
                planned.append(Planned(part, residency, len(chunks)))
                chunks.append(self._chunk(residency, part.entry))
        if later:
            self._queue.appendleft(Task(task.step, later, task.arrived_s, task.forward))
        if not chunks:
            if planned and task.forward:
                self._send_on(task, planned, None)
            return None
        rows = self._batch_rows(task, planned)
        return Job(task, self._take_ops(), tuple(chunks), rows, planned, now_s)

    def _must_wait(self, part: Part, chunks: list[Chunk], planned: list[Planned]) -> bool:
        """Whether a part has to go into a later batch than the chunks chosen so far."""
        if not chunks:
            return False
        count = len(part.entry.tokens)
        if sum(len(c.tokens) for c in chunks) + count > self._limits.max_batch_tokens:
            return True
        if not self._limits.mixes_chunks and (count > 1 or any(len(c.tokens) > 1 for c in chunks)):
            return True
        return any(p.residency.session == part.entry.session for p in planned)

    def _ready(self, task: Task, part: Part, now_s: float) -> Residency | None:
        """The session that a part may go on with now; None when it was dropped, parked or refused."""
        entry = part.entry
        if entry.session in self._closed:
            return None
        residency = self._sessions.get(entry.session)
        if residency is None:
            residency = self._admit(entry.session, None)
        if residency.opened is None:
            self._park(residency, task, part)
            if residency.open_tries == 0:
                self._need_open(residency, now_s)
            return None
        if entry.attempt != residency.attempt and not self._take_attempt(residency, entry):
            return None
        if not self._fits(residency, task, entry):
            return None
        if not residency.holds(entry.start, entry.tokens):
            self._refuse(entry.session, f"other tokens at positions [{entry.start}, {residency.held})")
            return None
        if entry.stop <= residency.held and entry.sample and self._is_last:
            self._ensure_drawn(residency, entry)
        if entry.start > residency.held:
            if task.forward:
                self._park(residency, task, part)
                self._pull(residency, entry.start, now_s)
            return None
        if entry.stop <= residency.held and not task.forward:
            return None
        return residency

    def _fits(self, residency: Residency, task: Task, entry: Entry) -> bool:
        """Refuse what would overrun the reservation or the batch; give a first entry its sequence."""
        opened = residency.opened
        assert opened is not None
        if not entry.tokens or entry.start < 0:
            self._refuse(entry.session, f"an entry of {len(entry.tokens)} tokens at {entry.start}")
        elif entry.stop > opened.reserved_tokens:
            self._refuse(entry.session, f"{entry.stop} tokens where {opened.reserved_tokens} are reserved")
        elif len(entry.tokens) > self._limits.max_batch_tokens:
            self._refuse(
                entry.session,
                f"a chunk of {len(entry.tokens)} tokens where {self._limits.max_batch_tokens} fit a batch",
            )
        elif residency.seq is None and not self._free_seqs:
            self._refuse(entry.session, f"all {self._limits.max_sequences} sequences are taken")
        else:
            if residency.seq is None:
                residency.seq = heapq.heappop(self._free_seqs)
            return True
        return False

    def _take_attempt(self, residency: Residency, entry: Entry) -> bool:
        """Move a session to a higher attempt; False for an entry of an older one."""
        if entry.attempt < residency.attempt:
            return False
        residency.attempt = entry.attempt
        residency.pull = None
        if entry.start < residency.held:
            if self._limits.can_trim and residency.seq is not None:
                self._ops.append(TrimSeq(residency.seq, entry.start))
                residency.forget(entry.start)
            else:
                self._lose(residency)
        return True

    def _ensure_drawn(self, residency: Residency, entry: Entry) -> None:
        """A draw is asked for again that is not known here: the session must be computed anew."""
        if entry.stop not in residency.drawn:
            self._lose(residency)

    def _chunk(self, residency: Residency, entry: Entry) -> Chunk:
        """The part of an entry that is not held yet."""
        assert residency.seq is not None
        assert residency.opened is not None
        tokens = entry.tokens[residency.held - entry.start :]
        draw = None
        if entry.sample and self._is_last:
            opened = residency.opened
            generated = [*residency.tokens, *tokens][opened.prompt_tokens :]
            draw = Draw(_sampling(opened), entry.stop, generated)
        return Chunk(residency.seq, residency.held, tokens, draw, residency.opened.seed)

    def _batch_rows(self, task: Task, planned: list[Planned]) -> Rows | None:
        """Input rows of the chunks. The frame's own rows, uncopied, when all of it is computed."""
        if self._is_first:
            return None
        pieces: list[Rows] = []
        for p in planned:
            if p.chunk is not None:
                assert p.part.rows is not None
                pieces.append(p.part.rows[p.residency.held - p.part.entry.start :])
        if len(pieces) == 1:
            return pieces[0]
        if task.rows is not None and sum(len(piece) for piece in pieces) == len(task.rows):
            return task.rows
        return np.concatenate(pieces)

    def _take_ops(self) -> tuple[ClearSeq | TrimSeq, ...]:
        ops, self._ops = tuple(self._ops), []
        return ops

    # ------------------------------------------------------------ outcomes

    def _advance(self, residency: Residency, chunk: Chunk, rows: Rows | None, token: int | None) -> None:
        residency.tokens.extend(chunk.tokens)
        residency.journal.append(len(chunk.tokens), rows)
        residency.failures = 0
        if residency.pull is not None:
            residency.pull.tries = 0
        if token is not None:
            residency.drawn[chunk.start + len(chunk.tokens)] = token

    def _send_on(self, task: Task, planned: list[Planned], outcome: Computed | None) -> None:
        if self._is_last:
            self._send_result(task, planned)
            return
        route = task.step.route
        if not route:
            return
        opens = tuple(o for o in task.step.opens if o.session in self._sessions)
        step = Step(
            task.step.epoch,
            task.step.step_id,
            self.worker,
            route[1:],
            tuple(p.part.entry for p in planned),
            opens,
        )
        self._sends.append(Send(WorkerId(route[0]), step, self._output_rows(planned, outcome)))

    def _output_rows(self, planned: list[Planned], outcome: Computed | None) -> Rows:
        """Rows of the entries in order. The engine's own array, uncopied, when it is just that."""
        total = sum(len(p.part.entry.tokens) for p in planned)
        computed = None if outcome is None else outcome.rows
        if computed is not None and len(computed) == total and all(p.chunk is not None for p in planned):
            return computed
        return np.concatenate(
            [p.residency.journal.read(p.part.entry.start, p.part.entry.stop) for p in planned]
        )

    def _send_result(self, task: Task, planned: list[Planned]) -> None:
        outputs = tuple(
            Output(
                p.part.entry.session,
                p.part.entry.attempt,
                p.part.entry.start,
                p.part.entry.stop,
                p.residency.drawn.get(p.part.entry.stop) if p.part.entry.sample else None,
            )
            for p in planned
        )
        result = Result(task.step.epoch, task.step.step_id, self.worker, outputs)
        self._sends.append(Send(DRIVER, result))

    def _report(self, job: Job, compute_s: float) -> None:
        step = job.task.step
        held = tuple((p.residency.session, p.residency.held) for p in job.planned)
        queue_s = job.started_s - job.task.arrived_s
        report = StageReport(step.epoch, step.step_id, self.worker, queue_s, compute_s, held)
        self._sends.append(Send(DRIVER, report))

    def _fail(self, job: Job, error: EngineError, now_s: float) -> None:
        """A computation was lost: its sessions start over here by pulling, within a limit."""
        for planned in job.planned:
            residency = planned.residency
            if residency.session not in self._sessions:
                continue
            if planned.chunk is not None:
                residency.failures += 1
                self._lose(residency)
            if residency.failures > MAX_FAILURES:
                self._refuse(residency.session, f"computing failed {residency.failures} times: {error}")
            elif job.task.forward:
                # Alone from now on: one bad session must not fail its neighbours again.
                self._queue.append(Task(job.task.step, [planned.part], job.task.arrived_s))
            else:
                self._pulled_part_done(residency.session, now_s)

    def _lose(self, residency: Residency) -> None:
        """State that is undefined, or without its journal, is not held."""
        if residency.seq is not None:
            self._ops.append(ClearSeq(residency.seq))
        drawn = dict(residency.drawn)
        residency.forget(0)
        residency.drawn = drawn  # what was drawn and sent stays true whatever becomes of the state

    def _refuse(self, session: int, reason: str) -> None:
        self._sends.append(Send(DRIVER, Refused(session, self.worker, reason)))

    # ------------------------------------------------------------ parking and pulling

    def _park(self, residency: Residency, task: Task, part: Part) -> None:
        if len(residency.parked) >= MAX_PARKED_PARTS:
            self.dropped_tasks += 1
            return
        residency.parked[part.entry.start] = Task(task.step, [part], task.arrived_s, task.forward)

    def _release_parked(self, residency: Residency, *, everything: bool = False) -> None:
        ready = sorted(start for start in residency.parked if everything or start <= residency.held)
        self._queue.extendleft(residency.parked.pop(start) for start in reversed(ready))

    def _moved(self, residency: Residency, now_s: float) -> None:
        """A session holds more than before: let go what waited for that."""
        if residency.session not in self._sessions:
            return
        self._serve_waiters(residency)
        self._release_parked(residency)
        pull = residency.pull
        if pull is None or pull.queued_parts:
            return
        if residency.held >= pull.stop:
            residency.pull = None
        else:
            self._send_pull(residency, pull, now_s)

    def _pull(self, residency: Residency, stop: int, now_s: float) -> None:
        if residency.pull is not None:
            residency.pull.stop = max(residency.pull.stop, stop)
            return
        residency.pull = PullInProgress(stop, now_s)
        self._send_pull(residency, residency.pull, now_s)

    def _send_pull(self, residency: Residency, pull: PullInProgress, now_s: float) -> None:
        if residency.held >= pull.stop:
            residency.pull = None
            return
        pull.tries += 1
        if pull.tries > MAX_PULL_TRIES:
            residency.pull = None
            self._refuse(residency.session, f"{residency.predecessor} does not answer pulls")
            return
        pull.deadline_s = now_s + self._retry_after_s
        message = Pull(
            self.epoch, residency.session, residency.attempt, residency.held, pull.stop, self.worker
        )
        self._sends.append(Send(residency.predecessor, message))

    def _pulled_part_done(self, session: int, now_s: float) -> None:
        """A pulled part has left the queue, computed or not; behind the last one comes the next pull."""
        residency = self._sessions.get(session)
        if residency is None:
            return
        if residency.pull is not None and residency.pull.queued_parts:
            residency.pull.queued_parts -= 1
        self._moved(residency, now_s)

    def _serve_waiters(self, residency: Residency) -> None:
        for requester, waiter in list(residency.waiters.items()):
            if waiter.attempt != residency.attempt or waiter.start >= residency.held:
                continue
            del residency.waiters[requester]
            self._send_refill(residency, requester, waiter)

    def _send_refill(self, residency: Residency, to: WorkerId, waiter: Waiter) -> None:
        lengths = residency.journal.chunks_from(waiter.start, REFILL_WINDOW_TOKENS)
        stop = waiter.start + sum(lengths)
        refill = Refill(
            self.epoch,
            residency.session,
            residency.attempt,
            waiter.start,
            tuple(residency.tokens[waiter.start : stop]),
            lengths,
            self.worker,
        )
        # Copied: the journal may be trimmed and written again before the socket has sent it.
        self._sends.append(Send(to, refill, residency.journal.read(waiter.start, stop).copy()))

    def _need_open(self, residency: Residency, now_s: float) -> None:
        residency.open_tries += 1
        residency.open_deadline_s = now_s + self._retry_after_s
        if residency.open_tries > MAX_OPEN_TRIES:
            self._close(residency.session)
            return
        self._sends.append(Send(DRIVER, NeedOpen(residency.session, self.worker)))


def _sampling(opened: Open) -> SamplingParams:
    return SamplingParams(opened.temperature, opened.top_k, opened.top_p, opened.min_p, opened.seed)
