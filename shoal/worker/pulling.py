"""What is missing is pulled: parking entries that came too early, asking the predecessor for what
lies before them, and answering successors that ask here.

Pure. It reads and moves residencies and puts messages into the worker's outbox; computing what
comes back is the protocol's.
"""

from __future__ import annotations

from collections import deque

from shoal.core.chunks import even_chunks
from shoal.core.placement import DRIVER, WorkerId
from shoal.wire.messages import Entry, NeedOpen, Pull, PullTaken, Refill, Step, Unanswered
from shoal.worker.journal_budget import JournalBudget
from shoal.worker.outbox import Outbox
from shoal.worker.residency import Part, PullInProgress, Residency, Task, Waiter

MAX_PARKED_PARTS = 64
MAX_PULL_TRIES = 20
MAX_OPEN_TRIES = 20


class Pulling:
    """queue: the worker's tasks; what was parked or pulled goes to its front, since entries behind
    it would only be parked again. budget: of the journals. retry_after_s: patience for an answer."""

    def __init__(
        self, outbox: Outbox, queue: deque[Task], budget: JournalBudget, retry_after_s: float
    ) -> None:
        self.epoch = 0
        self.awaits_states_until_s = 0.0  # what a leaving worker will send is not pulled before
        self._budget = budget
        self._unanswerable: list[Residency] = []
        self.parts_dropped = 0
        self._outbox = outbox
        self._queue = queue
        self._retry_after_s = retry_after_s

    # ------------------------------------------------------------ as the one who misses something

    def park(self, residency: Residency, task: Task, part: Part) -> None:
        """Keep a part until what lies before it is held; past the bound it is dropped and sent again."""
        if len(residency.parked) >= MAX_PARKED_PARTS:
            self.parts_dropped += 1
            return
        residency.parked[part.entry.start] = Task(task.step, [part], task.arrived_s, task.forward)

    def release(self, residency: Residency) -> None:
        """Put parked parts whose turn has come back into the queue."""
        ready = sorted(start for start in residency.parked if start <= residency.held)
        self._queue.extendleft(residency.parked.pop(start) for start in reversed(ready))

    def is_overtaken(self, residency: Residency, entry: Entry) -> bool:
        """Whether tokens are known here that were drawn behind an entry: the driver has its result then,
        and nobody waits for what comes late or again."""
        assert residency.opened is not None
        drawn_from = max(entry.stop, residency.opened.prompt_tokens)
        if residency.held > drawn_from or any(start >= drawn_from for start in residency.parked):
            return True
        queued = (part.entry for task in self._queue for part in task.parts)
        return any(e.session == residency.session and e.start >= drawn_from for e in queued)

    def pull(self, residency: Residency, stop: int, now_s: float) -> None:
        """Ask for this session's input up to `stop`, or farther if a pull is under way."""
        if residency.pull is not None:
            residency.pull.stop = max(residency.pull.stop, stop)
            return
        residency.pull = PullInProgress(stop, now_s)
        if residency.held == 0 and now_s < self.awaits_states_until_s:
            residency.pull.deadline_s = self.awaits_states_until_s
            return
        self._send_pull(residency, residency.pull, now_s)

    def take_refill(self, residency: Residency, refill: Refill, parts: list[Part], now_s: float) -> None:
        """Queue what was pulled, in the chunks that it was first computed in."""
        assert residency.pull is not None
        residency.pull.queued_parts = len(parts)
        step = Step(refill.epoch, 0, refill.sender, (), ())
        self._queue.extendleft(Task(step, [part], now_s, forward=False) for part in reversed(parts))

    def heard_of(self, residency: Residency, sender: WorkerId) -> None:
        """An answer came, for whichever session: the link stands, however long the others take."""
        if residency.pull is not None and sender == residency.predecessor:
            residency.pull.tries = 0

    def drop_queued(self, residency: Residency) -> None:
        """What was pulled and has not been computed is of no use any more."""
        residency.pull = None
        useful = [t for t in self._queue if t.forward or t.parts[0].entry.session != residency.session]
        self._queue.clear()
        self._queue.extend(useful)

    def part_done(self, residency: Residency, now_s: float) -> None:
        """A pulled part has left the queue, computed or not; behind the last comes the next pull."""
        if residency.pull is not None and residency.pull.queued_parts:
            residency.pull.queued_parts -= 1
        self.moved(residency, now_s)

    def moved(self, residency: Residency, now_s: float) -> None:
        """A session may hold more than before: let go what waited for that."""
        self.serve(residency)
        self.release(residency)
        pull = residency.pull
        if pull is None or pull.queued_parts:
            return
        if residency.held >= pull.stop:
            residency.pull = None
        else:
            self._send_pull(residency, pull, now_s)

    def need_open(self, residency: Residency, now_s: float) -> bool:
        """Ask the driver for a session's parameters; False when it has been asked often enough."""
        residency.open_tries += 1
        residency.open_deadline_s = now_s + self._retry_after_s
        if residency.open_tries > MAX_OPEN_TRIES:
            return False
        self._outbox.send(DRIVER, NeedOpen(residency.session, self._outbox.worker))
        return True

    def ask_again(self, residency: Residency, now_s: float) -> None:
        """The predecessor has changed: what was asked of the old one is asked of the new."""
        if residency.pull is not None and residency.pull.queued_parts == 0:
            residency.pull.tries = 0
            self._send_pull(residency, residency.pull, now_s)

    def retry(self, residency: Residency, now_s: float) -> None:
        """Ask again for what has not come by its deadline."""
        pull = residency.pull
        if pull is not None and pull.queued_parts == 0 and pull.deadline_s <= now_s:
            self._send_pull(residency, pull, now_s)

    def _send_pull(self, residency: Residency, pull: PullInProgress, now_s: float) -> None:
        if residency.held >= pull.stop:
            residency.pull = None
            return
        if self._must_hold_back(residency, pull, now_s):
            pull.deadline_s = now_s + self._retry_after_s
            return
        me = self._outbox.worker
        if pull.tries == MAX_PULL_TRIES:
            pull.tries = 0
            self._outbox.send(DRIVER, Unanswered(self.epoch, me, residency.predecessor))
        pull.tries += 1
        pull.deadline_s = now_s + self._retry_after_s
        exact = residency.opened is None or residency.opened.exact_replay
        message = Pull(
            self.epoch,
            residency.session,
            residency.attempt,
            residency.held,
            pull.stop,
            me,
            exact,
            self._budget.window_tokens,
        )
        self._outbox.send(residency.predecessor, message)

    def _must_hold_back(self, residency: Residency, pull: PullInProgress, now_s: float) -> bool:
        """Whether a successor that pulls this session is so far behind that a journal which is cut might
        not reach back to it any more. Not for ever: it may be gone."""
        if residency.successor_held is None:
            return False
        if pull.is_held_back and pull.deadline_s <= now_s:
            residency.successor_held = None
        elif residency.held - residency.successor_held > self._budget.window_tokens:
            pull.is_held_back = True
            return True
        pull.is_held_back = False
        return False

    # ------------------------------------------------------------ as the one who is asked

    def add_waiter(self, residency: Residency, pull: Pull, now_s: float) -> bool:
        """A successor asks. True when it was answered, or will be when the session has started over;
        False when it must wait for what is not held."""
        requester = WorkerId(pull.sender)
        residency.waiters[requester] = Waiter(pull.attempt, pull.start, pull.stop, pull.exact, pull.window)
        residency.successor_held = pull.start
        if residency.pull is not None and residency.pull.is_held_back:
            residency.pull.is_held_back = False
            self._send_pull(residency, residency.pull, now_s)
        self.serve(residency)
        if requester in residency.waiters:
            self.confirm(pull)
        return requester not in residency.waiters or residency in self._unanswerable

    def confirm(self, pull: Pull) -> None:
        """Tell a successor that its pull has come though it is not answered yet."""
        self._outbox.send(WorkerId(pull.sender), PullTaken(self._outbox.worker))

    def serve(self, residency: Residency) -> None:
        """Answer the successors whose positions have been computed."""
        for requester, waiter in list(residency.waiters.items()):
            if waiter.attempt != residency.attempt or waiter.start >= residency.held:
                continue
            if waiter.start >= residency.journal.first:
                del residency.waiters[requester]
                self._send_refill(residency, requester, waiter)
            elif residency not in self._unanswerable:
                self._unanswerable.append(residency)

    def take_unanswerable(self) -> list[Residency]:
        """Sessions that successors ask for farther back than their journals reach; each once."""
        unanswerable, self._unanswerable = self._unanswerable, []
        return unanswerable

    def _send_refill(self, residency: Residency, to: WorkerId, waiter: Waiter) -> None:
        window = min(waiter.window, self._budget.window_tokens)
        if waiter.exact:
            lengths = residency.journal.chunks_from(waiter.start, window)
        else:
            count = min(residency.held, waiter.stop) - waiter.start
            lengths = even_chunks(min(count, window), self._budget.chunk_tokens)
        stop = waiter.start + sum(lengths)
        if stop >= waiter.stop:
            residency.successor_held = None
        refill = Refill(
            self.epoch,
            residency.session,
            residency.attempt,
            waiter.start,
            tuple(residency.tokens[waiter.start : stop]),
            lengths,
            self._outbox.worker,
        )
        # Copied: the journal may be trimmed and written again before the socket has sent it.
        self._outbox.send(to, refill, residency.journal.read(waiter.start, stop).copy())


def refill_entries(refill: Refill) -> list[Entry] | None:
    """A refill as entries, one a chunk; None where its lengths do not add up."""
    if sum(refill.lengths) != len(refill.tokens) or any(length <= 0 for length in refill.lengths):
        return None
    entries, position = [], 0
    for length in refill.lengths:
        tokens = refill.tokens[position : position + length]
        entries.append(Entry(refill.session, refill.attempt, refill.start + position, tokens))
        position += length
    return entries
