"""The driver's policy: admit, schedule, take results in, send again, give up.

Pure: requests, messages and clock readings in, messages to workers and events for readers out.
driver.py runs it for real, the virtual cluster in virtual time. It is the only one that admits,
and what it has emitted is the truth about an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.core.config import DriverConfig
from shoal.core.errors import (
    Cancelled,
    ContextLengthExceeded,
    EngineError,
    NodeLost,
    NotReady,
    Overloaded,
    ShoalError,
    StageTimeout,
)
from shoal.core.placement import DRIVER, WorkerId
from shoal.core.sequence import Finished, FinishReason, GenerateEvent, GenerateRequest, Logprobs, SessionId
from shoal.pipeline.admission import Admission, Capacity
from shoal.pipeline.scheduler import Scheduler, StepChoice
from shoal.pipeline.session import Phase, Session
from shoal.pipeline.stage_statistics import StageStatistics
from shoal.pipeline.steps_in_flight import StepRecord, StepsInFlight
from shoal.pipeline.vocabulary import Vocabulary
from shoal.wire.messages import (
    Close,
    Closed,
    Live,
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
    ToDriver,
    ToWorker,
)

REFILL_WINDOW_TOKENS = 8192  # token ids only: 32 KiB
RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class SendTo:
    """Put a message to a worker on the wire."""

    to: WorkerId
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the next event, or the error that ends it, to whoever reads a session."""

    session: SessionId
    event: GenerateEvent | ShoalError


Action = SendTo | Deliver


@dataclass(slots=True)
class Closing:
    """A session that has ended but may still take room on `workers`."""

    workers: set[str]
    resend_s: float


@dataclass(slots=True)
class Route:
    """The stages that steps go through now."""

    epoch: int
    stages: tuple[WorkerId, ...]
    scheduler: Scheduler
    after_first: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.after_first = (*self.stages[1:], DRIVER)


class DriverCore:
    """All sessions of one pipeline.

    first_session: ids count up from here, and are never reused: a head that starts again must
    begin above its predecessor's.
    """

    def __init__(
        self, config: DriverConfig, vocabulary: Vocabulary, n_ctx: int, first_session: int = 1
    ) -> None:
        self.n_ctx = n_ctx
        self.statistics = StageStatistics()
        self.admission = Admission(Capacity(0, 0, 0))
        self._config = config
        self._vocabulary = vocabulary
        self._route: Route | None = None
        self._why_not_ready = "no placement yet"
        self._next_session = first_session
        self._newest_admitted = 0
        self._waiting: deque[Session] = deque()
        self._sessions: dict[int, Session] = {}
        self._steps = StepsInFlight(config, self.statistics)
        self._closing: dict[int, Closing] = {}
        self._actions: list[Action] = []

    # ------------------------------------------------------------ what the shell calls

    @property
    def num_active(self) -> int:
        return len(self._sessions)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_steps_in_flight(self) -> int:
        return len(self._steps)

    def take_actions(self) -> list[Action]:
        """Everything to be done since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def set_route(self, epoch: int, stages: Sequence[WorkerId], capacity: Capacity, now_s: float) -> None:
        """Send steps through `stages` from now on."""
        scheduler = Scheduler(
            num_stages=len(stages),
            chunk_tokens=min(self._config.chunk_tokens, capacity.batch_tokens),
            max_batch_tokens=capacity.batch_tokens,
            max_steps=self._config.steps_in_flight,
            consecutive_slots=self._config.invariant,
        )
        self._route = Route(epoch, tuple(stages), scheduler)
        self.admission.capacity = capacity
        self._proceed(now_s)

    def submit(self, request: GenerateRequest, now_s: float) -> SessionId:
        """Take a request in. Raises NotReady, ContextLengthExceeded or Overloaded, with nothing kept."""
        return self.submit_choices((request,), now_s)[0]

    def submit_choices(self, requests: Sequence[GenerateRequest], now_s: float) -> list[SessionId]:
        """Take the choices of one request in, all or, with an error as from `submit`, none.

        The queue's bound counts those who wait already, so that a request with more choices than
        the bound can be answered at all.
        """
        if self._route is None:
            raise NotReady(f"Not ready: {self._why_not_ready}.", retry_after_s=RETRY_AFTER_S)
        for request in requests:
            self._check_length(request)
        if len(self._waiting) >= self._config.max_waiting:
            raise Overloaded(
                f"{len(self._waiting)} requests are waiting already.", retry_after_s=RETRY_AFTER_S
            )
        sessions = [SessionId(self._next_session + number) for number in range(len(requests))]
        self._next_session += len(requests)
        self._waiting.extend(map(Session, sessions, requests))
        self._proceed(now_s)
        return sessions

    def cancel(self, session: SessionId, now_s: float) -> None:
        """Nobody reads this session any more: free it on every stage. Idempotent."""
        self._waiting = deque(s for s in self._waiting if s.session != session)
        if session in self._sessions:
            self._end(session, now_s)
        self._proceed(now_s)

    def receive(self, message: ToDriver, now_s: float) -> None:
        """Take one message of a worker in."""
        match message:
            case Result():
                self._receive_result(message, now_s)
            case Received():
                self._steps.progressed(message.step_id, f"{message.sender} received it", now_s)
            case StageReport():
                self.statistics.add_report(message)
                self._steps.progressed(message.step_id, f"{message.sender} sent it on", now_s)
            case NeedOpen():
                session = self._sessions.get(message.session)
                answer = Close((message.session,)) if session is None else session.open_message()
                self._send(WorkerId(message.sender), answer)
            case Pull():
                self._answer_pull(message)
            case Closed():
                self._closed(message)
                self._proceed(now_s)
            case Refused():
                self._fail(
                    message.session, EngineError(f"{message.sender} refused: {message.reason}."), now_s
                )
                self._proceed(now_s)

    def tick(self, now_s: float) -> None:
        """Send again what is past its deadline, or give it up."""
        for record in self._steps.overdue(now_s):
            if not record.entries:
                continue  # its sessions ended with a record before it
            if record.resends >= self._config.max_resends:
                self._give_up(record, now_s)
            else:
                self._resend(record, now_s)
        for session, closing in self._closing.items():
            if closing.resend_s <= now_s:
                self._send_close(session, closing, now_s)
        self._proceed(now_s)

    def heartbeat(self) -> None:
        """Renew the workers' leases and tell them which sessions live."""
        if self._route is None:
            return
        live = Live(self._route.epoch, self._newest_admitted, tuple(self._sessions))
        for worker in self._route.stages:
            self._send(worker, live)

    def fail_all(self, error: ShoalError, now_s: float) -> None:
        """No way to go on: end every session with `error`, refuse new ones."""
        for session in list(self._sessions):
            self._fail(session, error, now_s)
        for waiting in self._waiting:
            self._actions.append(Deliver(waiting.session, error))
        self._waiting.clear()
        for closing in self._closing:
            self.admission.release(closing)  # nobody is left who could confirm that it is closed
        self._closing.clear()
        self._route = None
        self._why_not_ready = error.message.rstrip(".")

    def fail_worker(self, worker: WorkerId, node: str, layers: str, cause: str, now_s: float) -> None:
        """A worker of the route is gone, and nobody else holds its layers."""
        if self._route is not None and worker in self._route.stages:
            self.fail_all(NodeLost(node=node, layers=layers, cause=cause), now_s)

    def shut_down(self, now_s: float) -> None:
        """The head ends: tell every reader."""
        self.fail_all(Cancelled("The server is shutting down."), now_s)

    def _check_length(self, request: GenerateRequest) -> None:
        limit = min(self.n_ctx, self.admission.capacity.cells)
        if len(request.prompt_tokens) + request.max_tokens > limit:
            raise ContextLengthExceeded(
                prompt_tokens=len(request.prompt_tokens),
                max_tokens=request.max_tokens,
                n_ctx=limit,
                param="messages",
            )

    # ------------------------------------------------------------ scheduling

    def _proceed(self, now_s: float) -> None:
        """Admit who fits, then fill the pipeline."""
        if self._route is None:
            return
        while self._waiting:
            session = self._waiting[0]
            session.slot = self.admission.try_reserve(session.session, session.reserved_tokens)
            if session.slot is None:
                break
            self._waiting.popleft()
            session.phase = Phase.PREFILL
            self._sessions[session.session] = session
            self._newest_admitted = session.session
        while (
            choice := self._route.scheduler.choose(list(self._sessions.values()), self._steps.counts())
        ) is not None:
            self._send_step(self._route, choice, now_s)

    def _send_step(self, route: Route, choice: StepChoice, now_s: float) -> None:
        sessions = [self._sessions[session] for session in choice.sessions]
        is_prefill = sessions[0].phase is Phase.PREFILL
        opens = tuple(s.open_message() for s in sessions if not s.opened)
        entries = tuple(s.next_entry(choice.max_tokens) for s in sessions)
        for session in sessions:
            session.opened = True
        record = self._steps.add(entries, is_prefill=is_prefill, now_s=now_s)
        self._send_entries(route, record, opens)

    def _send_entries(self, route: Route, record: StepRecord, opens: tuple[Open, ...]) -> None:
        entries = tuple(record.entries.values())
        step = Step(route.epoch, record.step_id, DRIVER, route.after_first, entries, opens)
        self._send(route.stages[0], step)

    def _resend(self, record: StepRecord, now_s: float) -> None:
        if self._route is None:
            return
        self._steps.resent(record, now_s)
        opens = tuple(self._sessions[session].open_message() for session in record.entries)
        self._send_entries(self._route, record, opens)

    def _give_up(self, record: StepRecord, now_s: float) -> None:
        error = StageTimeout(
            f"Step {record.step_id} got no answer though it was sent {record.resends + 1} times: "
            f"{record.seen}.",
            next_step="See `shoal status` for the stage that does not answer.",
        )
        for session in list(record.entries):
            self._fail(session, error, now_s)

    # ------------------------------------------------------------ results

    def _receive_result(self, result: Result, now_s: float) -> None:
        if self._route is None or result.epoch != self._route.epoch:
            return
        self._steps.returned(result.step_id, now_s)
        for output in result.outputs:
            self._accept(output, now_s)
        self._proceed(now_s)

    def _accept(self, output: Output, now_s: float) -> None:
        session = self._sessions.get(output.session)
        if session is None:
            return
        entry = session.in_flight.get(output.start)
        if entry is None or (entry.attempt, entry.stop) != (output.attempt, output.stop):
            return  # a repetition: its token was emitted before
        if entry.sample and output.token is None:
            return  # the stage has lost the draw; the deadline sends the entry again
        # A result proves that everything before it was computed, whatever became of those results.
        for start in [s for s in session.in_flight if s <= output.start]:
            del session.in_flight[start]
            self._steps.settle(session.session, start)
        if output.token is not None:
            self._emit(session, output.token, output.logprobs, now_s)

    def _emit(self, session: Session, token: int, logprobs: Logprobs | None, now_s: float) -> None:
        delta, reason = session.accept(token, self._vocabulary, logprobs)
        if delta is not None:
            self._actions.append(Deliver(session.session, delta))
        if reason is not None:
            self._finish(session, reason, now_s)

    def _finish(self, session: Session, reason: FinishReason, now_s: float) -> None:
        event = Finished(reason, session.prompt_length, session.num_generated)
        self._actions.append(Deliver(session.session, event))
        self._end(session.session, now_s)

    def _fail(self, session: int, error: ShoalError, now_s: float) -> None:
        if session in self._sessions:
            self._actions.append(Deliver(SessionId(session), error))
            self._end(session, now_s)

    def _end(self, session: int, now_s: float) -> None:
        ended = self._sessions.pop(session)
        self._steps.forget(session)
        if self._route is None or not ended.opened:
            self.admission.release(session)
            return
        self._closing[session] = Closing(set(self._route.stages), now_s)
        self._send_close(session, self._closing[session], now_s)

    def _send_close(self, session: int, closing: Closing, now_s: float) -> None:
        closing.resend_s = now_s + self._config.resend_after_s
        for worker in sorted(closing.workers):
            self._send(WorkerId(worker), Close((session,)))

    def _closed(self, closed: Closed) -> None:
        for session in closed.sessions:
            closing = self._closing.get(session)
            if closing is None:
                continue
            closing.workers.discard(closed.sender)
            if not closing.workers:
                del self._closing[session]
                self.admission.release(session)

    def _answer_pull(self, pull: Pull) -> None:
        session = self._sessions.get(pull.session)
        if session is None:
            self._send(WorkerId(pull.sender), Close((pull.session,)))
            return
        if pull.attempt != session.attempt or not 0 <= pull.start < session.sent:
            return
        lengths = session.chunks_from(pull.start, REFILL_WINDOW_TOKENS)
        tokens = tuple(session.tokens[pull.start : pull.start + sum(lengths)])
        epoch = 0 if self._route is None else self._route.epoch
        self._send(
            WorkerId(pull.sender),
            Refill(epoch, pull.session, pull.attempt, pull.start, tokens, lengths, DRIVER),
        )

    def _send(self, to: WorkerId, message: ToWorker) -> None:
        self._actions.append(SendTo(to, message))
