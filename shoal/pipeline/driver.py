"""The pipeline driver at work: its policy on real sockets, its answers in asyncio.

One thread owns the policy and the socket. Requests come from an asyncio loop as calls that this
thread makes for it; events go back in one wake-up of the loop for all that a message caused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from shoal.core.config import DriverConfig
from shoal.core.errors import ClusterError, NotReady, ShoalError
from shoal.core.placement import Endpoint, Placement, WorkerId
from shoal.core.request_times import RequestTimes, RequestTotals
from shoal.core.sequence import ChoiceEvent, Finished, GenerateEvent, GenerateRequest, SessionId
from shoal.engine.interface import EngineLimits
from shoal.pipeline.actions import Deliver, HandedOver, LinkCut, PipelineEvent, Resumed, SendTo, StageSilent
from shoal.pipeline.admission import Capacity
from shoal.pipeline.protocol import DriverCore
from shoal.pipeline.stage_statistics import ReplayEstimate
from shoal.pipeline.vocabulary import Vocabulary
from shoal.wire.channel import Channel
from shoal.wire.curve import SecureContext
from shoal.wire.messages import ToDriver

TICK_S = 0.1
HEARTBEAT_S = 1.0
CALL_DEADLINE_S = 5.0

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One worker's last steps, as medians; None before any. is_slow: they take far longer than
    such steps took before."""

    compute_ms: float | None
    queue_ms: float | None
    steps: int
    is_slow: bool


@dataclass(frozen=True, slots=True)
class DriverStatistics:
    """What the driver holds at one moment. result_epoch: of the newest result."""

    sessions_active: int
    sessions_waiting: int
    cells_reserved: int
    cells_total: int
    steps_in_flight: int
    result_epoch: int
    replay: ReplayEstimate
    stages: dict[WorkerId, StageFigures]


@dataclass(slots=True)
class _Reader:
    """Who reads the events of a request's sessions, in its own asyncio loop. choices: the sessions
    that have not ended, each with its choice's number."""

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[ChoiceEvent | ShoalError] = field(default_factory=asyncio.Queue)
    choices: dict[SessionId, int] = field(default_factory=dict)


class Driver:
    """Feeds one pipeline and implements pipeline/interface.py's TextGenerator.

    n_ctx: tokens that one sequence may have. listen_address: where workers send their results.
    on_event: told, in the driver's thread, of what the stages' reports say about machines and links.
    """

    def __init__(
        self,
        config: DriverConfig,
        vocabulary: Vocabulary,
        n_ctx: int,
        *,
        listen_address: str = "127.0.0.1",
        on_event: Callable[[PipelineEvent], None] = lambda event: None,
    ) -> None:
        self._on_event = on_event
        # Microseconds since 1970: above every id of a head that ran before on these workers.
        self._secure = SecureContext()
        self._channel = Channel(self._secure, listen_address)
        self._core = DriverCore(
            config, vocabulary, n_ctx, self._channel.endpoint, first_session=time.time_ns() // 1000
        )
        self._placement: Placement | None = None
        self._readers: dict[SessionId, _Reader] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._calls_lock = threading.Lock()
        self._takes_calls = False  # from the start of the thread to its last look at `_calls`
        self._stopping = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="shoal-driver", daemon=True)

    @property
    def n_ctx(self) -> int:
        return self._core.n_ctx

    @property
    def endpoint(self) -> Endpoint:
        return self._channel.endpoint

    @property
    def secure(self) -> SecureContext:
        """Keys of this process, for other sockets of the head."""
        return self._secure

    def start(self) -> None:
        self._takes_calls = True
        self._thread.start()

    def stop(self) -> None:
        """End every session with an error, then the thread and the sockets. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._thread.is_alive():
            with contextlib.suppress(NotReady):  # it has just died of a bug
                self._call(lambda: self._core.shut_down(time.monotonic())).result(CALL_DEADLINE_S)
            self._post(self._stopping.set)
            self._thread.join(CALL_DEADLINE_S)
        self._channel.close()
        self._secure.close()

    def set_placement(
        self, placement: Placement, limits: Mapping[WorkerId, EngineLimits], journal_bytes: int
    ) -> None:
        """Send steps through these stages as soon as all workers have confirmed them.

        limits: of stages and standbys. journal_bytes: what each may journal.
        """

        def apply() -> None:
            self._placement = placement
            self._channel.set_peers({worker.worker: worker.endpoint for worker in placement.workers})
            capacity = Capacity.smallest(limits.values(), journal_bytes)
            self._core.set_placement(placement, capacity, time.monotonic())

        self._call(apply).result(CALL_DEADLINE_S)

    def lose_worker(self, worker: WorkerId) -> None:
        """A worker is gone. Where it carried a stage, requests wait for the next placement."""
        self._call(lambda: self._core.lose_worker(worker, time.monotonic())).result(CALL_DEADLINE_S)

    def hand_over(self, leaving: WorkerId, successor: WorkerId) -> None:
        """Have a worker send its sessions to its successor; a `HandedOver` event tells when."""
        self._call(lambda: self._core.hand_over(leaving, successor, time.monotonic())).result(CALL_DEADLINE_S)

    def fail_all(self, error: ShoalError) -> None:
        """No way to go on: end every request with `error`, refuse new ones until the next placement."""
        self._call(lambda: self._core.fail_all(error, time.monotonic())).result(CALL_DEADLINE_S)

    def statistics(self) -> DriverStatistics:
        """A consistent look at the driver. From any thread but its own."""
        return self._call(self._statistics).result(CALL_DEADLINE_S)

    def replay_estimate(self) -> ReplayEstimate:
        """What coming back from a loss would cost now. From any thread but the driver's."""
        return self._call(self._core.replay_estimate).result(CALL_DEADLINE_S)

    def request_times(self, request_id: str | None) -> tuple[RequestTimes, ...]:
        """Where the answers of one request spent their time, by any of its names; of the newest
        request without one. Empty where it is not remembered. From any thread but the driver's."""
        return self._call(lambda: self._core.trace.find(request_id)).result(CALL_DEADLINE_S)

    def request_totals(self) -> RequestTotals:
        """All requests so far. From any thread but the driver's."""
        return self._call(self._core.trace.totals.view).result(CALL_DEADLINE_S)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """`generate_choices` of one request alone."""
        async with contextlib.aclosing(self.generate_choices((request,))) as events:
            async for _, event in events:
                yield event

    async def generate_choices(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """See pipeline/interface.py."""
        reader = _Reader(asyncio.get_running_loop())
        num_unfinished = len(requests)
        try:
            await asyncio.wrap_future(self._call(lambda: self._submit(requests, reader)))
            while num_unfinished:
                event = await reader.events.get()
                if isinstance(event, ShoalError):
                    raise event
                num_unfinished -= isinstance(event[1], Finished)
                yield event
        finally:
            if num_unfinished:
                self._post(lambda: self._abandon(reader))

    # ------------------------------------------------------------ calls, made in the driver's thread

    def _submit(self, requests: Sequence[GenerateRequest], reader: _Reader) -> None:
        try:
            sessions = self._core.submit_choices(requests, time.monotonic())
        except ShoalError as error:
            self._core.trace.refused(error.code)
            raise
        reader.choices = {session: choice for choice, session in enumerate(sessions)}
        self._readers.update(dict.fromkeys(sessions, reader))

    def _abandon(self, reader: _Reader) -> None:
        for session in list(reader.choices):
            self._forget(session)
            self._core.cancel(session, time.monotonic())

    def _forget(self, session: SessionId) -> None:
        """Nothing more is delivered for a session."""
        reader = self._readers.pop(session, None)
        if reader is not None:
            del reader.choices[session]

    def _statistics(self) -> DriverStatistics:
        core, figures = self._core, self._core.statistics
        workers = [] if self._placement is None else [stage.worker for stage in self._placement.stages]
        return DriverStatistics(
            sessions_active=core.num_active,
            sessions_waiting=core.num_waiting,
            cells_reserved=core.admission.cells_reserved,
            cells_total=core.admission.capacity.cells,
            steps_in_flight=core.num_steps_in_flight,
            result_epoch=core.result_epoch,
            replay=core.replay_estimate(),
            stages={
                worker: StageFigures(
                    figures.compute_ms(worker),
                    figures.queue_ms(worker),
                    figures.num_steps(worker),
                    figures.is_slow(worker),
                )
                for worker in workers
            },
        )

    def _post(self, call: Callable[[], None]) -> bool:
        """Have the driver's thread make a call; False where it makes no more."""
        with self._calls_lock:
            if not self._takes_calls:
                return False
            self._calls.append(call)
            self._channel.wake()
            return True

    def _call(self, call: Callable[[], T]) -> Future[T]:
        """Have the driver's thread make a call; the future has its result or its error."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except ShoalError as error:
                future.set_exception(error)
            except Exception:
                future.set_exception(_broken())
                raise

        if not self._post(run):
            future.set_exception(NotReady("The driver is not running.", retry_after_s=1.0))
        return future

    # ------------------------------------------------------------ the driver's thread

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            logger.exception("the driver's thread died of a bug; every request ends with an error")
            self._core.fail_all(_broken(), time.monotonic())
            # Not what the core wants delivered: what it wanted when the bug struck may be lost.
            for session, reader in list(self._readers.items()):
                self._hand_over(reader.loop, [(reader, Deliver(session, _broken()))])
        finally:
            with self._calls_lock:
                self._takes_calls = False
            while self._calls:  # those who posted them wait for an answer
                with contextlib.suppress(Exception):
                    self._calls.popleft()()

    def _loop(self) -> None:
        next_tick_s = next_heartbeat_s = time.monotonic()
        while not self._stopping.is_set():
            arrivals = self._channel.receive(next_tick_s - time.monotonic())
            now_s = time.monotonic()
            for arrival in arrivals:
                if isinstance(arrival.message, ToDriver):
                    self._core.receive(arrival.message, now_s)
            while self._calls:
                self._calls.popleft()()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                self._core.tick(now_s)
            if now_s >= next_heartbeat_s:
                next_heartbeat_s = now_s + HEARTBEAT_S
                self._core.heartbeat()
            self._act()

    def _act(self) -> None:
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[_Reader, Deliver]]] = defaultdict(list)
        for action in self._core.take_actions():
            match action:
                case SendTo():
                    self._channel.send(action.to, action.message)
                case LinkCut() | StageSilent() | Resumed() | HandedOver():
                    self._on_event(action)
                case Deliver():
                    reader = self._readers.get(action.session)
                    if reader is not None:
                        deliveries[reader.loop].append((reader, action))
        self._core.trace.left(time.monotonic())
        for loop, batch in deliveries.items():
            self._hand_over(loop, batch)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[_Reader, Deliver]]) -> None:
        events: list[tuple[_Reader, ChoiceEvent | ShoalError]] = []
        for reader, action in batch:
            event = action.event
            if isinstance(event, ShoalError):
                events.append((reader, event))
            else:
                events.append((reader, (reader.choices[action.session], event)))
            if isinstance(event, Finished | ShoalError):
                self._forget(action.session)

        def put() -> None:
            for reader, event in events:
                reader.events.put_nowait(event)

        try:
            loop.call_soon_threadsafe(put)
        except RuntimeError:  # the loop has been closed: nobody reads any more
            for reader, _ in batch:
                self._abandon(reader)


def _broken() -> ClusterError:
    return ClusterError("The driver failed; see the server's log.")
