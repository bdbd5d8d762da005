"""The driver's policy: admit, schedule, take results in, send again, give up.

Pure: requests, messages and clock readings in, messages to workers and events for readers out.
driver.py runs it for real, the virtual cluster in virtual time. It is the only one that admits,
and what it has emitted is the truth about an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shoal.core.chunks import even_chunks
from shoal.core.config import DriverConfig
from shoal.core.errors import (
    Cancelled,
    ContextLengthExceeded,
    EngineError,
    NotReady,
    Overloaded,
    ShoalError,
    StageTimeout,
)
from shoal.core.placement import DRIVER, Endpoint, Placement, WorkerId
from shoal.core.sequence import Finished, FinishReason, GenerateRequest, Logprobs, SessionId
from shoal.pipeline.actions import Action, Deliver, LinkCut, Resumed, SendTo, StageSilent
from shoal.pipeline.admission import Admission, Capacity
from shoal.pipeline.closings import Closings
from shoal.pipeline.hand_overs import HandOvers
from shoal.pipeline.route import Route, RouteChange
from shoal.pipeline.scheduler import Scheduler, StepChoice
from shoal.pipeline.session import Phase, Session
from shoal.pipeline.stage_statistics import ReplayEstimate, StageStatistics
from shoal.pipeline.steps_in_flight import StepRecord, StepsInFlight
from shoal.pipeline.trace import Tracer
from shoal.pipeline.vocabulary import Vocabulary
from shoal.wire.messages import (
    Close,
    Closed,
    HandingOver,
    HandOverTo,
    Live,
    NeedOpen,
    Open,
    Output,
    PeersTaken,
    Pull,
    PullTaken,
    Received,
    Refill,
    Refused,
    Result,
    StageReport,
    StateTaken,
    Step,
    ToDriver,
    ToWorker,
    Unanswered,
)

REFILL_WINDOW_TOKENS = 8192  # token ids only: 32 KiB
RETRY_AFTER_S = 2.0


class DriverCore:
    """All sessions of one pipeline.

    endpoint: where this driver listens, told to the workers. first_session: ids count up from
    here, and are never reused: a head that starts again must begin above its predecessor's.
    """

    def __init__(
        self,
        config: DriverConfig,
        vocabulary: Vocabulary,
        n_ctx: int,
        endpoint: Endpoint,
        first_session: int = 1,
    ) -> None:
        self.n_ctx = n_ctx
        self.statistics = StageStatistics()
        self.trace = Tracer()
        self.admission = Admission(Capacity(0, 0, 0))
        self._config = config
        self._vocabulary = vocabulary
        self._endpoint = endpoint
        self._placement: Placement | None = None
        self._present: dict[WorkerId, int] = {}  # live workers of the placement, with their stage
        self._route: Route | None = None
        self._change: RouteChange | None = None
        self._suspended_s: float | None = None
        self._why_not_ready: str | None = "no placement yet"
        self._next_session = first_session
        self._newest_admitted = 0
        self.result_epoch = 0  # of the newest result
        self._waiting: deque[Session] = deque()
        self._sessions: dict[int, Session] = {}
        self._steps = StepsInFlight(config, self.statistics)
        self._closings = Closings(config.resend_after_s, config.max_resends)
        self._hand_overs = HandOvers()
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

    def replay_estimate(self) -> ReplayEstimate:
        """What coming back from a loss would cost now, but for loading."""
        num_in_chunks = num_singly = 0
        for session in self._sessions.values():
            num_prompt = min(session.sent, session.prompt_length)
            num_in_chunks += num_prompt
            if session.was_alone and not self._config.invariant:
                num_singly += session.sent - num_prompt  # in the very chunks of the first time
            else:
                num_in_chunks += session.sent - num_prompt
        return self.statistics.replay_estimate(num_in_chunks, num_singly)

    @property
    def is_routed(self) -> bool:
        """Whether steps flow now."""
        return self._route is not None

    def set_placement(self, placement: Placement, capacity: Capacity, now_s: float) -> None:
        """Tell everybody of a placement, and send steps along it once all have confirmed.

        A new epoch suspends the old route. Sessions go on where they were: every unfinished entry
        is sent again along the new route, and what a stage lacks it pulls. Within an epoch only the
        standbys differ, and steps flow on.
        """
        if self._placement is None or placement.epoch != self._placement.epoch:
            self._suspend(now_s)
        scheduler = Scheduler(
            num_stages=len(placement.stages),
            chunk_tokens=min(self._config.chunk_tokens, capacity.batch_tokens),
            least_chunk_tokens=self._config.least_chunk_tokens,
            max_batch_tokens=capacity.batch_tokens,
            max_steps=self._config.steps_in_flight,
            consecutive_slots=self._config.invariant,
        )
        self._placement = placement
        self.trace.num_stages = len(placement.stages)
        self._why_not_ready = None
        self._change = RouteChange(Route(placement, scheduler), self._endpoint)
        self._steps.row_bytes = capacity.row_bytes
        self.admission.capacity = capacity
        starts = [stage.layers.start for stage in placement.stages]
        self._present = {w.worker: starts.index(w.layers.start) for w in placement.workers}
        self._forget_the_gone()
        self._refuse_what_no_longer_fits()
        self.statistics.keep_only(self._present)
        self._tell(self._change, now_s)

    def lose_worker(self, worker: WorkerId, now_s: float) -> None:
        """A worker is gone. Where it carried a stage, no steps are sent until the next placement;
        sessions are kept, requests wait."""
        if worker not in self._present:
            return
        del self._present[worker]
        self._forget_the_gone()
        placement = self._placement
        if placement is not None and worker in {stage.worker for stage in placement.stages}:
            self._suspend(now_s)

    def hand_over(self, leaving: WorkerId, successor: WorkerId, now_s: float) -> None:
        """Have a worker send its sessions to its successor, which is fed as a hot standby already.
        `HandedOver` tells when the route may change."""
        self._hand_overs.begin(leaving, successor, now_s)
        self._tell_leaving()

    def _tell_leaving(self) -> None:
        """Only when everybody knows the successor: before, it would refuse what is sent to it."""
        if self._change is None and self._placement is not None:
            for worker, successor in self._hand_overs.take_untold():
                self._send(worker, HandOverTo(self._placement.epoch, successor))

    def _check_hand_overs(self, now_s: float) -> None:
        self._actions += self._hand_overs.finished(self._sessions, self._present, now_s)

    def _suspend(self, now_s: float) -> None:
        if self._route is not None and self._suspended_s is None and self._sessions:
            self._suspended_s = now_s
        self._route = self._change = None

    def _refuse_what_no_longer_fits(self) -> None:
        for session in list(self._waiting):
            try:
                self._check_length(session.request)
            except ContextLengthExceeded as error:
                self._waiting.remove(session)
                self._actions.append(Deliver(session.session, error))

    def submit(self, request: GenerateRequest, now_s: float) -> SessionId:
        """Take a request in. Raises NotReady, ContextLengthExceeded or Overloaded, with nothing kept."""
        return self.submit_choices((request,), now_s)[0]

    def submit_choices(self, requests: Sequence[GenerateRequest], now_s: float) -> list[SessionId]:
        """Take the choices of one request in, all or, with an error as from `submit`, none.

        The queue's bound counts those who wait already, so that a request with more choices than
        the bound can be answered at all.
        """
        if self._why_not_ready is not None:
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
        for session, request in zip(sessions, requests, strict=True):
            self.trace.submitted(session, request.request_id, len(request.prompt_tokens), now_s)
        self._proceed(now_s)
        return sessions

    def cancel(self, session: SessionId, now_s: float) -> None:
        """Nobody reads this session any more: free it on every stage. Idempotent."""
        self._waiting = deque(s for s in self._waiting if s.session != session)
        self.trace.ended(session, "cancelled", now_s)
        if session in self._sessions:
            self._end(session, now_s)
        self._proceed(now_s)

    def receive(self, message: ToDriver, now_s: float) -> None:
        """Take one message of a worker in."""
        stage = self._present.get(WorkerId(message.sender))
        if stage is None:
            return  # somebody who has left the placement cannot speak for it
        match message:
            case Result():
                self._receive_result(message, now_s)
            case Received():
                self._steps.received(message.step_id, stage, now_s)
            case StageReport():
                self.trace.reported(message.step_id, stage, message.queue_s, message.compute_s)
                record = self._steps.find(message.step_id)
                if message.compute_s and record is not None:
                    self.statistics.add_report(message, record.total_tokens, is_prefill=record.is_prefill)
                self._steps.sent_on(message.step_id, stage, now_s)
            case NeedOpen():
                session = self._sessions.get(message.session)
                answer = Close((message.session,)) if session is None else self._open_message(session)
                self._send(WorkerId(message.sender), answer)
            case Pull():
                self._answer_pull(message)
            case Closed():
                self._closed(message)
                self._proceed(now_s)
            case Refused():
                error = EngineError(f"{message.sender} refused: {message.reason}.")
                self._fail(message.session, error, now_s)
                self._proceed(now_s)
            case Unanswered():
                self._note_unanswered(message)
            case PeersTaken():
                self._confirmed(message, now_s)
            case HandingOver() | StateTaken():
                self._hand_overs.take(message)
                self._check_hand_overs(now_s)

    def tick(self, now_s: float) -> None:
        """Send again what is past its deadline, or give it up."""
        if self._change is not None and self._change.tell_again_s <= now_s:
            self._tell(self._change, now_s)
        if self._route is not None:
            self._chase_steps(self._route, now_s)
        self._check_hand_overs(now_s)
        self._tell_closes(now_s)
        self._proceed(now_s)

    def heartbeat(self) -> None:
        """Renew the workers' leases and tell them which sessions live."""
        if self._placement is None:
            return
        live = Live(self._placement.epoch, self._newest_admitted, tuple(self._sessions))
        for worker in self._present:
            self._send(worker, live)

    def fail_all(self, error: ShoalError, now_s: float) -> None:
        """No way to go on: end every session with `error`, refuse new ones until the next placement."""
        for session in list(self._sessions):
            self._fail(session, error, now_s)
        for waiting in self._waiting:
            self._actions.append(Deliver(waiting.session, error))
            self.trace.ended(waiting.session, error.code, now_s)
        self._waiting.clear()
        self._route = self._change = None
        self._suspended_s = None
        self._why_not_ready = error.message.rstrip(".")

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

    # ------------------------------------------------------------ the route

    def _tell(self, change: RouteChange, now_s: float) -> None:
        for worker, peers in change.messages(now_s):
            self._send(worker, peers)

    def _confirmed(self, taken: PeersTaken, now_s: float) -> None:
        change = self._change
        if change is None or taken.epoch != change.route.epoch:
            return
        if change.confirm(taken.sender):
            self._tell(change, now_s)
        if not change.is_confirmed:
            return
        was_suspended = self._route is None
        self._change, self._route = None, change.route
        self._tell_leaving()
        if was_suspended:
            for record in self._steps.restart(now_s):
                self._send_again(self._route, record, now_s)
        self._proceed(now_s)

    def _forget_the_gone(self) -> None:
        """A worker that has left frees nothing any more, and need not confirm it."""
        for session in self._closings.keep_only(self._present):
            self.admission.release(session)

    def _open_message(self, session: Session) -> Open:
        return session.open_message(exact_replay=not self._config.invariant)

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
            if self._sessions:
                session.was_alone = False
                for other in self._sessions.values():
                    other.was_alone = False
            self._sessions[session.session] = session
            self._newest_admitted = session.session
        while (
            choice := self._route.scheduler.choose(list(self._sessions.values()), self._steps.counts())
        ) is not None:
            self._send_step(self._route, choice, now_s)

    def _send_step(self, route: Route, choice: StepChoice, now_s: float) -> None:
        sessions = [self._sessions[session] for session in choice.sessions]
        is_prefill = sessions[0].phase is Phase.PREFILL
        opens = tuple(self._open_message(s) for s in sessions if not s.opened)
        entries = tuple(s.next_entry(choice.max_tokens) for s in sessions)
        for session in sessions:
            session.opened = True
        record = self._steps.add(entries, is_prefill=is_prefill, now_s=now_s)
        self.trace.sent(record.step_id, len(entries), now_s)
        self._send_entries(route, record, opens)

    def _send_entries(self, route: Route, record: StepRecord, opens: tuple[Open, ...]) -> None:
        entries = tuple(record.entries.values())
        step = Step(route.epoch, record.step_id, DRIVER, route.after_first, entries, opens)
        self._send(route.stages[0], step)
        for standby in route.first_standbys:
            self._send(standby, Step(route.epoch, record.step_id, DRIVER, (), entries, opens))

    def _chase_steps(self, route: Route, now_s: float) -> None:
        """Steps past a deadline: first the hops, which take no computing and so are judged sooner."""
        for record in self._steps.hop_overdue(now_s):
            if not record.entries:
                continue  # its sessions ended with a record before it
            if self._steps.hop_lost(record, now_s):
                ends = (DRIVER, *route.stages, DRIVER)
                hop = record.lost_hop or 0
                self._actions.append(LinkCut(ends[hop], ends[hop + 1]))
            self._send_again(route, record, now_s)
        for record in self._steps.overdue(now_s):
            if not record.entries:
                continue
            if record.resends >= self._config.max_resends:
                self._give_up(record, now_s)
                continue
            if record.resends and record.num_received > record.num_sent_on:
                silent = route.stages[record.num_received - 1]
                self._actions.append(StageSilent(silent, record.step_id))
            self._steps.resent(record, now_s)
            self._send_again(route, record, now_s)

    def _send_again(self, route: Route, record: StepRecord, now_s: float) -> None:
        self.trace.sent_again(record.step_id, now_s)
        opens = tuple(self._open_message(self._sessions[session]) for session in record.entries)
        self._send_entries(route, record, opens)

    def _give_up(self, record: StepRecord, now_s: float) -> None:
        error = StageTimeout(
            f"Step {record.step_id} got no answer though it was sent {record.resends + 1} times; "
            f"{record.num_received} stages received it, {record.num_sent_on} sent it on.",
            next_step="See `shoal status` for the stage that does not answer.",
        )
        for session in list(record.entries):
            self._fail(session, error, now_s)

    # ------------------------------------------------------------ results

    def _receive_result(self, result: Result, now_s: float) -> None:
        route = self._route
        if route is None or result.epoch != route.epoch or result.sender != route.stages[-1]:
            return
        self.result_epoch = result.epoch
        self._steps.returned(result.step_id, now_s)
        if self._suspended_s is not None:
            self._actions.append(Resumed(result.epoch, now_s - self._suspended_s))
            self._suspended_s = None
        for output in result.outputs:
            self._accept(output, result.step_id, now_s)
        self._proceed(now_s)

    def _accept(self, output: Output, step_id: int, now_s: float) -> None:
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
        self.trace.accepted(session.session, step_id, now_s, is_token=output.token is not None)
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
        self.trace.ended(session.session, reason.value, now_s)
        self._end(session.session, now_s)

    def _fail(self, session: int, error: ShoalError, now_s: float) -> None:
        if session in self._sessions:
            self._actions.append(Deliver(SessionId(session), error))
            self.trace.ended(session, error.code, now_s)
            self._end(session, now_s)

    def _end(self, session: int, now_s: float) -> None:
        ended = self._sessions.pop(session)
        self._steps.forget(session)
        if not self._present or not ended.opened:
            self.admission.release(session)
            return
        self._closings.begin(session, self._present, now_s)
        self._tell_closes(now_s)

    def _tell_closes(self, now_s: float) -> None:
        for told in self._closings.due(now_s):
            for worker in told.workers:
                self._send(worker, Close((told.session,)))
                if told.is_last_time:
                    # It takes nothing from us, whatever its pings say: its room would never come back.
                    self._actions.append(LinkCut(DRIVER, worker))

    def _closed(self, closed: Closed) -> None:
        for session in closed.sessions:
            if self._closings.confirm(session, WorkerId(closed.sender)):
                self.admission.release(session)

    def _answer_pull(self, pull: Pull) -> None:
        session = self._sessions.get(pull.session)
        if session is None:
            self._send(WorkerId(pull.sender), Close((pull.session,)))
            return
        if pull.attempt != session.attempt or not 0 <= pull.start < session.sent:
            self._send(WorkerId(pull.sender), PullTaken(DRIVER))
            return
        window = min(pull.window, REFILL_WINDOW_TOKENS)
        if pull.exact:
            lengths = session.chunks_from(pull.start, window)
        else:
            count = min(pull.stop, session.sent) - pull.start
            lengths = even_chunks(min(count, window), self.admission.capacity.batch_tokens)
        tokens = tuple(session.tokens[pull.start : pull.start + sum(lengths)])
        epoch = 0 if self._placement is None else self._placement.epoch
        refill = Refill(epoch, pull.session, pull.attempt, pull.start, tokens, lengths, DRIVER)
        self._send(WorkerId(pull.sender), refill)

    def _note_unanswered(self, message: Unanswered) -> None:
        """A stage gets no answer from the one before it, which lives: what lies between is cut. Who was lost
        is asked no more once the new route is known there."""
        sender, asked = WorkerId(message.sender), WorkerId(message.predecessor)
        is_newest = self._placement is not None and message.epoch == self._placement.epoch
        if is_newest and (asked == DRIVER or asked in self._present):
            self._actions.append(LinkCut(asked, sender))

    def _send(self, to: WorkerId, message: ToWorker) -> None:
        self._actions.append(SendTo(to, message))
