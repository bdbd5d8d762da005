"""The worker's policy: what to compute, answer, park, pull, drop or refuse.

The entry rule (DESIGN section 5), applied to each entry when it is about to be computed:
`start` = held: compute, journal, send on. `start` < held, same tokens and attempt: answer from
the journal. `start` > held: park it and pull what is missing from the predecessor.

Pure: messages and clock readings in, `Send`s and `Job`s out. It never touches a socket, a
thread or an engine; slice_worker.py runs it for real, the virtual cluster in virtual time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shoal.core.errors import EngineError
from shoal.core.placement import DRIVER, WorkerId
from shoal.engine.interface import Chunk, Computed, EngineLimits, Rows
from shoal.wire.messages import (
    Close,
    Closed,
    Entry,
    HandOverTo,
    Live,
    Open,
    Peers,
    PeersTaken,
    Pull,
    PullTaken,
    Refill,
    Refused,
    Result,
    StageReport,
    State,
    Step,
    ToWorker,
)
from shoal.worker.acknowledgements import Acknowledgements
from shoal.worker.batch import chunk_of, input_rows, output_rows, outputs, split_rows
from shoal.worker.hand_over import HandOver
from shoal.worker.job import Job, Planned, SavedState, StateJob
from shoal.worker.outbox import Outbox, Send
from shoal.worker.pulling import Pulling, refill_entries
from shoal.worker.residency import Part, Residency, Task
from shoal.worker.residency_table import ResidencyTable

MAX_QUEUED_TASKS = 256  # far above any driver's steps in flight; past it a task is dropped and sent again
MAX_FAILURES = 3
UNBOUNDED_BYTES = 1 << 62
HAND_OVER_PATIENCE_S = 10.0  # for sessions that a leaving worker sends, before they are pulled

_NO_TASK = Task(Step(0, 0, DRIVER, (), ()), [], 0.0, forward=False)


class WorkerCore:
    """One worker's decisions.

    Feed it with `receive`, `finish` and `tick`, which is also due at `next_due_s`; take `next_job`
    whenever the engine is free, and `take_sends` after every call. predecessor: who is asked for
    missing input of a session of which no entry has come yet. retry_after_s: patience for a pull or
    an open. journal_bytes: what all journals may take together.
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
        journal_bytes: int = UNBOUNDED_BYTES,
    ) -> None:
        self.worker = worker
        self.predecessor = predecessor
        self.last_step_received = 0
        self.tasks_dropped = 0
        self.computed_tokens = self.pulled_tokens = 0
        self.compute_s = self.pull_s = 0.0
        self.num_long_pulls = 0  # sessions computed again because of a journal that was cut
        self._is_last = is_last
        self._limits = limits
        self._width_in = None if is_first else limits.row_width_in
        self._queue: deque[Task] = deque()
        self._outbox = Outbox(worker)
        self._acknowledgements = Acknowledgements(worker)
        self._sessions = ResidencyTable(limits, 0 if is_last else limits.row_width_out, journal_bytes)
        self._pulling = Pulling(self._outbox, self._queue, self._sessions.budget, retry_after_s)
        self._feeds: tuple[WorkerId, ...] = ()
        self._handing = HandOver(self._outbox, self._sessions, 0 if is_last else limits.row_width_out)

    # ------------------------------------------------------------ what the shell calls

    @property
    def epoch(self) -> int:
        return self._pulling.epoch

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_queued(self) -> int:
        return len(self._queue) + self._handing.num_queued

    @property
    def journal_bytes(self) -> int:
        return sum(residency.journal.allocated_bytes for residency in self._sessions)

    @property
    def next_due_s(self) -> float | None:
        """When `tick` must be called, if nothing comes before; None where its usual time will do."""
        return self._acknowledgements.next_due_s

    @property
    def num_cut_journals(self) -> int:
        """Sessions of which the journal has only the last rows."""
        return sum(residency.journal.is_cut for residency in self._sessions)

    @property
    def num_journal_cuts(self) -> int:
        """How often a journal had to give way, so far."""
        return self._sessions.num_cuts

    def take_peers(self, peers: Peers, now_s: float) -> None:
        """Know the placement of a new epoch; steps of older ones are dropped from now on.

        What is being pulled is asked of the new predecessor at once: the old one may be gone. So is
        what a leaving worker was to send, when it will send nothing more.
        """
        if peers.epoch < self.epoch:
            return
        awaited = self._pulling.awaits_states_until_s > now_s and not peers.awaits_states
        self._pulling.epoch = peers.epoch
        self.predecessor = WorkerId(peers.predecessor)
        self._feeds = tuple(WorkerId(worker) for worker in peers.feeds)
        self._pulling.awaits_states_until_s = now_s + HAND_OVER_PATIENCE_S if peers.awaits_states else 0.0
        for residency in self._sessions:
            residency.successor_held = None
            if awaited or residency.predecessor != self.predecessor:
                residency.predecessor = self.predecessor
                self._pulling.ask_again(residency, now_s)
        self._outbox.send(DRIVER, PeersTaken(peers.epoch, self.worker))

    def take_sends(self) -> list[Send]:
        """Everything to be sent since the last call, in order."""
        return self._outbox.take()

    def receive(self, message: ToWorker, rows: Rows | None, now_s: float) -> None:
        """Take one message in. rows: `[num_tokens, row_width_in]` of a step or refill, or None."""
        match message:
            case Step():
                self._receive_step(message, rows, now_s)
            case Refill():
                self._heard_of(WorkerId(message.sender))
                self._receive_refill(message, rows, now_s)
            case Pull():
                self._receive_pull(message, now_s)
            case PullTaken():
                self._heard_of(WorkerId(message.sender))
            case Open():
                self._receive_open(message, now_s)
            case Close():
                for session in message.sessions:
                    self._sessions.close(session)
                self._outbox.send(DRIVER, Closed(message.sessions, self.worker))
            case Live():
                self._sessions.keep_only(message)
            case Peers():
                self.take_peers(message, now_s)
            case HandOverTo():
                self._handing.begin(WorkerId(message.successor))
            case State():
                self._handing.receive(message, rows)

    def next_job(self, now_s: float) -> Job | StateJob | None:
        """The next work for the engine, or None. Call it only while the engine is free."""
        for residency in self._pulling.take_unanswerable():
            self._start_over(residency, now_s)
        state_job = self._handing.next_job(self.predecessor)
        if state_job is not None:
            return state_job
        while self._queue:
            job = self._plan(self._queue.popleft(), now_s)
            if job is not None:
                return job
        if self._sessions.has_ops:
            return Job(_NO_TASK, self._sessions.take_ops(), (), None)
        return None

    def finish_state(self, job: StateJob, outcome: SavedState | EngineError, now_s: float) -> None:
        """Take in that a session was saved or restored."""
        if self._handing.finish(job, outcome):
            self._pulling.moved(job.residency, now_s)

    def finish(self, job: Job, outcome: Computed | EngineError, compute_s: float, now_s: float) -> None:
        """Take a job's outcome in: journal it, send it on, and let what waited for it go."""
        if isinstance(outcome, EngineError):
            self._fail(job, outcome, now_s)
            return
        self._count(job, compute_s)
        self._journal(job, outcome)
        if job.task.forward and job.planned:
            self._send_on(job.task, job.planned, outcome)
            self._report(job.task, job.planned, job.started_s - job.task.arrived_s, compute_s)
        for planned in job.planned:
            self._go_on(job.task, planned.residency, now_s)

    def tick(self, now_s: float) -> None:
        """Say what has come, and ask again for what has not: pulls and opens past their deadline."""
        for received in self._acknowledgements.take_due(now_s):
            self._outbox.send(DRIVER, received)
        for residency in self._sessions:
            if residency.opened is None and residency.open_deadline_s <= now_s:
                self._need_open(residency, now_s)
            else:
                self._pulling.retry(residency, now_s)

    # ------------------------------------------------------------ messages in

    def _receive_step(self, step: Step, rows: Rows | None, now_s: float) -> None:
        if step.epoch != self.epoch and step.route:
            return  # its route has ended, or is not known here yet; the driver sends its entries again
        self.last_step_received = step.step_id
        if step.route:
            self._acknowledgements.owe(step, now_s)
        for opened in step.opens:
            self._receive_open(opened, now_s)
        parts = split_rows(step.entries, rows, self._width_in)
        if parts is None:
            for entry in step.entries:
                self._refuse(entry.session, "the rows behind the step do not fit its entries")
            return
        if len(self._queue) >= MAX_QUEUED_TASKS:
            self.tasks_dropped += 1
            return
        for entry in step.entries:
            residency = self._sessions.get(entry.session)
            if residency is not None:
                residency.predecessor = WorkerId(step.sender)
        self._queue.append(Task(step, parts, now_s, rows=rows))

    def _receive_refill(self, refill: Refill, rows: Rows | None, now_s: float) -> None:
        residency = self._sessions.get(refill.session)
        if residency is None or residency.pull is None or residency.pull.queued_parts:
            return
        stop = refill.start + len(refill.tokens)
        if refill.attempt != residency.attempt or not refill.start <= residency.held < stop:
            return
        entries = refill_entries(refill)
        parts = None if entries is None else split_rows(entries, rows, self._width_in)
        if parts is None:
            self._refuse(refill.session, "the rows behind a refill do not fit its tokens")
            return
        self._pulling.take_refill(residency, refill, parts, now_s)

    def _heard_of(self, sender: WorkerId) -> None:
        for residency in self._sessions:
            self._pulling.heard_of(residency, sender)

    def _receive_pull(self, pull: Pull, now_s: float) -> None:
        if pull.start < 0:
            return
        if self._sessions.is_closed(pull.session):
            self._pulling.confirm(pull)  # the driver tells whoever asks that it has ended
            return
        residency = self._sessions.find_or_add(pull.session, self.predecessor)
        answered = self._pulling.add_waiter(residency, pull, now_s)
        if not answered and residency.opened is not None and not self._expects(residency):
            self._pulling.pull(residency, pull.stop, now_s)

    def _start_over(self, residency: Residency, now_s: float) -> None:
        """Rows are asked for that the journal has no more. State without its journal does not count as
        held: the session is pulled anew. Only while the engine is free."""
        if self._sessions.get(residency.session) is not residency:
            return
        self.num_long_pulls += 1
        self._sessions.lose(residency)
        self._pulling.drop_queued(residency)
        for waiter in residency.waiters.values():
            self._pulling.pull(residency, waiter.stop, now_s)

    def _expects(self, residency: Residency) -> bool:
        """Whether something that is queued or asked for already will move this session on."""
        if residency.pull is not None:
            return True
        return any(part.entry.session == residency.session for task in self._queue for part in task.parts)

    def _receive_open(self, opened: Open, now_s: float) -> None:
        if self._sessions.is_closed(opened.session):
            return
        residency = self._sessions.find_or_add(opened.session, self.predecessor)
        if residency.opened is not None:
            return
        self._sessions.set_opened(residency, opened)
        for start in sorted(residency.parked, reverse=True):
            self._queue.appendleft(residency.parked.pop(start))
        for waiter in list(residency.waiters.values()):
            self._pulling.pull(residency, waiter.stop, now_s)

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
                self._pulled_part_done(task, part.entry.session, now_s)
            elif part.entry.stop <= residency.held:
                planned.append(Planned(part, residency, None))
            else:
                planned.append(Planned(part, residency, len(chunks)))
                chunks.append(chunk_of(residency, part.entry, may_draw=self._is_last))
        if later:
            self._queue.appendleft(Task(task.step, later, task.arrived_s, task.forward))
        if not chunks:
            if planned:
                self._send_on(task, planned, None)
                self._report(task, planned, now_s - task.arrived_s, 0.0)
            return None
        rows = None if self._width_in is None else input_rows(task, planned)
        return Job(task, self._sessions.take_ops(), tuple(chunks), rows, planned, now_s)

    def _must_wait(self, part: Part, chunks: Sequence[Chunk], planned: Sequence[Planned]) -> bool:
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
        if self._sessions.is_closed(entry.session):
            return None
        residency = self._sessions.find_or_add(entry.session, WorkerId(task.step.sender))
        if residency.opened is None:
            self._pulling.park(residency, task, part)
            if residency.open_tries == 0:
                self._need_open(residency, now_s)
            return None
        if not self._sessions.take_attempt(residency, entry):
            return None
        reason = self._why_refused(residency, residency.opened, entry)
        if reason is not None:
            self._refuse(entry.session, reason)
            return None
        if entry.start < residency.held and task.step.route:
            self._see_to_answer(residency, entry, now_s)
        if entry.start > residency.held:
            if task.forward:
                self._pulling.park(residency, task, part)
                self._pulling.pull(residency, entry.start, now_s)
            return None
        if entry.stop <= residency.held and not task.forward:
            return None
        return residency

    def _why_refused(self, residency: Residency, opened: Open, entry: Entry) -> str | None:
        """What is wrong with an entry that must never be computed; None for a sound one."""
        count = len(entry.tokens)
        if count == 0 or entry.start < 0:
            return f"an entry of {count} tokens at {entry.start}"
        if entry.stop > opened.reserved_tokens:
            return f"{entry.stop} tokens where {opened.reserved_tokens} are reserved"
        if count > self._limits.max_batch_tokens:
            return f"a chunk of {count} tokens where {self._limits.max_batch_tokens} fit a batch"
        if not residency.holds(entry.start, entry.tokens):
            return f"other tokens at positions [{entry.start}, {residency.held})"
        if not self._sessions.take_seq(residency):
            return f"slot {opened.slot} of {self._limits.max_sequences} is taken or does not exist"
        return None

    def _see_to_answer(self, residency: Residency, entry: Entry, now_s: float) -> None:
        """Give up the state where a draw or rows are asked for again that are not known here any more:
        computed anew is the only way. Not for what nobody waits for."""
        is_drawn_behind = self._is_last and entry.sample and entry.stop <= residency.held
        lacks_draw = is_drawn_behind and entry.stop not in residency.drawn
        lacks_rows = entry.start < residency.journal.first
        if not (lacks_draw or lacks_rows) or self._pulling.is_overtaken(residency, entry):
            return
        if lacks_draw:
            self._sessions.lose(residency)
        else:
            self._start_over(residency, now_s)

    # ------------------------------------------------------------ outcomes

    def _journal(self, job: Job, outcome: Computed) -> None:
        offset = 0
        for planned in job.planned:
            if planned.chunk is None:
                continue
            chunk, residency = job.chunks[planned.chunk], planned.residency
            count = len(chunk.tokens)
            rows = None if outcome.rows is None else outcome.rows[offset : offset + count]
            self._sessions.advance(residency, chunk.tokens, rows, outcome.drawn_behind(planned.chunk))
            offset += count

    def _count(self, job: Job, compute_s: float) -> None:
        num_tokens = sum(len(chunk.tokens) for chunk in job.chunks)
        self.computed_tokens += num_tokens
        self.compute_s += compute_s
        if not job.task.forward and job.chunks:
            self.pulled_tokens += num_tokens
            self.pull_s += compute_s

    def _send_on(self, task: Task, planned: list[Planned], outcome: Computed | None) -> None:
        step = task.step
        if not step.route:
            return  # a hot standby is fed: what it computed stays here until it takes over
        if self._is_last:
            self._outbox.send(DRIVER, Result(step.epoch, step.step_id, self.worker, outputs(planned)))
            return
        # A journal may have been cut for what was computed beside it: then the entry comes again.
        planned = [p for p in planned if p.part.entry.start >= p.residency.journal.first]
        if not planned:
            return
        opens = tuple(o for o in step.opens if self._sessions.get(o.session) is not None)
        entries = tuple(p.part.entry for p in planned)
        rows = output_rows(planned, outcome)
        onward = Step(step.epoch, step.step_id, self.worker, step.route[1:], entries, opens)
        self._outbox.send(WorkerId(step.route[0]), onward, rows)
        for standby in self._feeds:
            fed = Step(step.epoch, step.step_id, self.worker, (), entries, opens)
            self._outbox.send(standby, fed, rows)

    def _report(self, task: Task, planned: list[Planned], queue_s: float, compute_s: float) -> None:
        step = task.step
        if step.route:
            self._acknowledgements.settle(step.step_id)
            held = tuple((p.residency.session, p.residency.held) for p in planned)
            report = StageReport(step.epoch, step.step_id, self.worker, queue_s, compute_s, held)
            self._outbox.send(DRIVER, report)

    def _fail(self, job: Job, error: EngineError, now_s: float) -> None:
        """A computation was lost: its sessions start over here by pulling, within a limit."""
        for planned in job.planned:
            residency, num_failures = planned.residency, 0
            if planned.chunk is not None:
                num_failures = residency.failed()
                self._sessions.lose(residency)
            if num_failures > MAX_FAILURES:
                self._refuse(residency.session, f"computing failed {num_failures} times: {error}")
            elif job.task.forward:
                # Alone from now on: one bad session must not fail its neighbours again.
                self._queue.append(Task(job.task.step, [planned.part], job.task.arrived_s))
            self._pulled_part_done(job.task, residency.session, now_s)

    def _go_on(self, task: Task, residency: Residency, now_s: float) -> None:
        if not task.forward:
            self._pulled_part_done(task, residency.session, now_s)
        elif self._sessions.get(residency.session) is residency:
            self._pulling.moved(residency, now_s)

    def _pulled_part_done(self, task: Task, session: int, now_s: float) -> None:
        residency = self._sessions.get(session)
        if residency is not None and not task.forward:
            self._pulling.part_done(residency, now_s)

    def _need_open(self, residency: Residency, now_s: float) -> None:
        if not self._pulling.need_open(residency, now_s):
            self._sessions.close(residency.session)

    def _refuse(self, session: int, reason: str) -> None:
        self._outbox.send(DRIVER, Refused(session, self.worker, reason))
