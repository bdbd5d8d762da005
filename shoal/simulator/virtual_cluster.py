"""The policy cores of production in virtual time: driver, workers, and a network that may misbehave.

One SimPy loop runs the same DriverCore and WorkerCore that the real processes run, over digest
engines. Everything random comes from one seed, so a failing run replays exactly. The fault test
and the simulator both stand on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from shoal.core.config import DriverConfig
from shoal.core.errors import ShoalError
from shoal.core.placement import DRIVER, WorkerId
from shoal.core.sequence import Finished, GenerateEvent, GenerateRequest, SessionId, TextDelta, TokenLogprobs
from shoal.engine.interface import Engine, Rows
from shoal.pipeline.admission import Capacity
from shoal.pipeline.protocol import Deliver, DriverCore, SendTo
from shoal.pipeline.vocabulary import Vocabulary
from shoal.wire import messages
from shoal.wire.messages import Message
from shoal.worker.job import Job, run_job
from shoal.worker.protocol import WorkerCore

TICK_S = 0.1
HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How the network misbehaves. delay_s: least one-way delay; jitter_s: mean of the exponential
    part on top, which also reorders. loss, duplication: probability a message."""

    delay_s: float = 0.0005
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0


@dataclass(slots=True)
class Answer:
    """What one request got: its text, the logprobs that came with it, and how it ended. None
    while it goes on."""

    request: GenerateRequest
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: Finished | ShoalError | None = None
    cancelled: bool = False


Process = Generator[simpy.Event, Any, None]


class VirtualNetwork:
    """Carries messages between named ends, through the real encoding."""

    def __init__(self, env: simpy.Environment, rng: random.Random, faults: NetworkFaults) -> None:
        self.faults = faults
        self._env = env
        self._rng = rng
        self._ends: dict[WorkerId, Callable[[Message, Rows | None], None]] = {}

    def attach(self, name: WorkerId, deliver: Callable[[Message, Rows | None], None]) -> None:
        """Let `name` receive messages through `deliver`."""
        self._ends[name] = deliver

    def send(self, to: WorkerId, message: Message, rows: Rows | None) -> None:
        """Deliver later: never, once or twice, as the faults have it."""
        frame = messages.encode(message)
        copies = 0 if self._rng.random() < self.faults.loss else 1
        copies += self._rng.random() < self.faults.duplication
        for _ in range(copies):
            self._env.process(self._carry(to, frame, rows))

    def _carry(self, to: WorkerId, frame: bytes, rows: Rows | None) -> Process:
        jitter_s = self._rng.expovariate(1 / self.faults.jitter_s) if self.faults.jitter_s else 0.0
        yield self._env.timeout(self.faults.delay_s + jitter_s)
        self._ends[to](messages.decode(frame), rows)


class VirtualWorker:
    """One WorkerCore with an engine that takes virtual time to compute."""

    def __init__(
        self,
        env: simpy.Environment,
        network: VirtualNetwork,
        core: WorkerCore,
        engine: Engine,
        compute_s: Callable[[int], float],
    ) -> None:
        self.core = core
        self.engine = engine
        self._env = env
        self._network = network
        self._compute_s = compute_s
        self._busy = False
        network.attach(core.worker, self._deliver)
        env.process(self._tick())

    def _deliver(self, message: Message, rows: Rows | None) -> None:
        assert isinstance(message, messages.ToWorker)
        self.core.receive(message, rows, self._env.now)
        self._flush()

    def _tick(self) -> Process:
        while True:
            yield self._env.timeout(TICK_S)
            self.core.tick(self._env.now)
            self._flush()

    def _flush(self) -> None:
        if not self._busy and (job := self.core.next_job(self._env.now)) is not None:
            self._busy = True
            self._env.process(self._run(job))
        for send in self.core.take_sends():
            self._network.send(send.to, send.message, send.rows)

    def _run(self, job: Job) -> Process:
        outcome = run_job(self.engine, job)
        seconds = self._compute_s(sum(len(chunk.tokens) for chunk in job.chunks))
        yield self._env.timeout(seconds)
        self.core.finish(job, outcome, seconds, self._env.now)
        self._busy = False
        self._flush()


@dataclass(slots=True)
class VirtualCluster:
    """A driver and a pipeline of workers, ready to answer.

    Build it with `build`; `submit` requests at chosen times; `run` until all have ended and the
    cluster is empty again.
    """

    env: simpy.Environment
    rng: random.Random
    network: VirtualNetwork
    driver: DriverCore
    workers: list[VirtualWorker]
    answers: list[Answer] = field(default_factory=list)
    _by_session: dict[SessionId, Answer] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        *,
        seed: int,
        engines: Sequence[Engine],
        vocabulary: Vocabulary,
        n_ctx: int,
        faults: NetworkFaults | None = None,
        config: DriverConfig | None = None,
        compute_s: Callable[[int], float] = lambda tokens: 0.004 + 0.0005 * tokens,
    ) -> VirtualCluster:
        """A pipeline with one worker for each engine, in order."""
        env, rng = simpy.Environment(), random.Random(seed)
        network = VirtualNetwork(env, rng, faults or NetworkFaults())
        config = config or DriverConfig(resend_after_s=0.5, max_resends=12)
        driver = DriverCore(config, vocabulary, n_ctx)
        workers, predecessor = [], DRIVER
        for stage, engine in enumerate(engines):
            core = WorkerCore(
                WorkerId(f"w{stage}"),
                is_first=stage == 0,
                is_last=stage == len(engines) - 1,
                limits=engine.limits,
                predecessor=predecessor,
                retry_after_s=0.4,
            )
            workers.append(VirtualWorker(env, network, core, engine, compute_s))
            predecessor = core.worker
        cluster = cls(env, rng, network, driver, workers)
        network.attach(DRIVER, cluster._deliver)
        capacity = Capacity.smallest([engine.limits for engine in engines], journal_bytes=1 << 30)
        driver.set_route(1, [worker.core.worker for worker in workers], capacity, env.now)
        env.process(cluster._tick())
        env.process(cluster._heartbeat())
        return cluster

    def submit(
        self, request: GenerateRequest, *, at_s: float = 0.0, cancel_after_s: float | None = None
    ) -> Answer:
        """Send a request in at a virtual time, and perhaps go away later."""
        answer = Answer(request)
        self.answers.append(answer)
        self.env.process(self._client(answer, at_s, cancel_after_s))
        return answer

    def run(self, *, limit_s: float = 600.0) -> None:
        """Run until every request has ended and everything is freed. Raises TimeoutError past the limit."""
        while not (self._all_ended() and self.is_empty()):
            if self.env.now > limit_s:
                raise TimeoutError(f"after {limit_s} virtual s: {self.describe()}")
            self.env.run(until=self.env.now + 0.5)

    def is_empty(self) -> bool:
        """Whether no queue, session or reservation is left anywhere."""
        driver, cores = self.driver, [worker.core for worker in self.workers]
        return (
            driver.num_active == driver.num_waiting == driver.num_steps_in_flight == 0
            and driver.admission.num_sequences == 0
            and all(core.num_sessions == core.num_queued == 0 for core in cores)
        )

    def describe(self) -> str:
        """One line for a failing run."""
        unended = [a.request.request_id for a in self.answers if a.end is None and not a.cancelled]
        workers = [(w.core.worker, w.core.num_sessions, w.core.num_queued) for w in self.workers]
        return f"unended {unended}, driver steps {self.driver.num_steps_in_flight}, workers {workers}"

    def _all_ended(self) -> bool:
        return all(answer.end is not None or answer.cancelled for answer in self.answers)

    def _client(self, answer: Answer, at_s: float, cancel_after_s: float | None) -> Process:
        yield self.env.timeout(at_s)
        try:
            session = self.driver.submit(answer.request, self.env.now)
        except ShoalError as error:
            answer.end = error
            return
        self._by_session[session] = answer
        self._flush()
        if cancel_after_s is not None:
            yield self.env.timeout(cancel_after_s)
            answer.cancelled = answer.end is None
            self.driver.cancel(session, self.env.now)
            self._flush()

    def _deliver(self, message: Message, rows: Rows | None) -> None:
        assert isinstance(message, messages.ToDriver)
        self.driver.receive(message, self.env.now)
        self._flush()

    def _tick(self) -> Process:
        while True:
            yield self.env.timeout(TICK_S)
            self.driver.tick(self.env.now)
            self._flush()

    def _heartbeat(self) -> Process:
        while True:
            yield self.env.timeout(HEARTBEAT_S)
            self.driver.heartbeat()
            self._flush()

    def _flush(self) -> None:
        for action in self.driver.take_actions():
            match action:
                case SendTo():
                    self.network.send(action.to, action.message, None)
                case Deliver():
                    self._hand_over(self._by_session[action.session], action.event)

    def _hand_over(self, answer: Answer, event: GenerateEvent | ShoalError) -> None:
        if answer.end is not None:
            raise AssertionError(f"{answer.request.request_id} got {event} after its end")
        if isinstance(event, TextDelta):
            answer.text += event.text
            answer.logprobs += event.logprobs
        else:
            answer.end = event
