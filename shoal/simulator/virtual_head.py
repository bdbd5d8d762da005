"""The head in virtual time: the driver's policy, its clients, pings, and recovery.

It does what control/ does around the same `decide`: it notices that a worker is gone, looks at
the facts, starts what is missing and changes the route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from shoal.control.recovery import Facts, NodeFact, Start, decide
from shoal.core.config import DriverConfig
from shoal.core.errors import NodeLost, ShoalError
from shoal.core.placement import DRIVER, Endpoint, NodeId, Placement, WorkerId, WorkerInfo
from shoal.core.sequence import Finished, GenerateEvent, GenerateRequest, SessionId, TextDelta, TokenLogprobs
from shoal.core.specs import LayerRange
from shoal.engine.interface import Rows
from shoal.pipeline.actions import Deliver, HandedOver, LinkCut, Resumed, SendTo, StageSilent
from shoal.pipeline.admission import Capacity
from shoal.pipeline.protocol import DriverCore
from shoal.pipeline.vocabulary import Vocabulary
from shoal.simulator.up_time import UpTime
from shoal.simulator.virtual_network import Process, VirtualNetwork
from shoal.simulator.virtual_worker import TICK_S, VirtualWorker
from shoal.wire.messages import Message, ToDriver

HEARTBEAT_S = 1.0
PING_INTERVAL_S = 0.25
PING_PATIENCE_S = 1.2
NOWHERE = Endpoint("virtual", 0, "")


@dataclass(slots=True)
class Answer:
    """What one request got: its text, the logprobs that came with it, when each piece came, and how
    and when it ended. None while it goes on."""

    request: GenerateRequest
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: Finished | ShoalError | None = None
    cancelled: bool = False
    is_admitted: bool = False
    pieces_s: list[float] = field(default_factory=list)
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """ranges: layers of each stage. survive: as in control/recovery.py. node_bytes: what a machine
    may hold; slice_bytes: what a slice takes. load_s: seconds until a fresh worker has its layers.
    journal_bytes: what each worker may journal."""

    ranges: tuple[LayerRange, ...]
    survive: int
    node_bytes: Mapping[NodeId, int]
    slice_bytes: Mapping[LayerRange, int]
    load_s: Callable[[LayerRange], float]
    n_ctx: int
    driver: DriverConfig
    journal_bytes: int


class VirtualHead:
    """start_worker: makes a worker on a node. ended: told of every answer that ends."""

    def __init__(
        self,
        env: simpy.Environment,
        network: VirtualNetwork,
        config: HeadConfig,
        vocabulary: Vocabulary,
        nodes: Sequence[NodeId],
        start_worker: Callable[[NodeId, LayerRange], VirtualWorker],
        ended: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        self.driver = DriverCore(config.driver, vocabulary, config.n_ctx, NOWHERE)
        self.placement: Placement | None = None
        self.answers: list[Answer] = []
        self.stalls_s: list[float] = []
        self.was_stranded = False
        self._env = env
        self._up_time = UpTime(env.now)
        self._network = network
        self._config = config
        self._start_worker = start_worker
        self._ended = ended
        self._nodes = set(nodes)
        self._live: dict[WorkerId, VirtualWorker] = {}
        self._answered_s: dict[WorkerId, float] = {}
        self._owners: dict[int, tuple[WorkerId, ...]] = {}
        self._starting: list[Start] = []
        self._leaving: set[NodeId] = set()
        self._handing: set[WorkerId] = set()
        self._by_session: dict[SessionId, Answer] = {}
        network.attach(DRIVER, self._deliver)
        for run in (self._tick, self._heartbeat, self._ping):
            env.process(run())

    # ------------------------------------------------------------ clients

    def submit(self, request: GenerateRequest, at_s: float, cancel_after_s: float | None) -> Answer:
        """Send a request in at a virtual time, and perhaps go away later."""
        answer = Answer(request)
        self.answers.append(answer)
        self._env.process(self._client(answer, at_s, cancel_after_s))
        return answer

    def admit(self, answer: Answer) -> SessionId | None:
        """Hand a request to the driver now. None where it is refused; the answer then has its end."""
        try:
            session = self.driver.submit(answer.request, self._env.now)
        except ShoalError as error:
            self._end(answer, error)
            return None
        answer.is_admitted = True
        self._by_session[session] = answer
        self._flush()
        return session

    def _client(self, answer: Answer, at_s: float, cancel_after_s: float | None) -> Process:
        yield self._env.timeout(at_s)
        session = self.admit(answer)
        if session is not None and cancel_after_s is not None:
            yield self._env.timeout(cancel_after_s)
            answer.cancelled = answer.end is None
            self.driver.cancel(session, self._env.now)
            self._flush()

    def _hand_over(self, answer: Answer, event: GenerateEvent | ShoalError) -> None:
        if answer.end is not None:
            raise AssertionError(f"{answer.request.request_id} got {event} after its end")
        if isinstance(event, TextDelta):
            answer.text += event.text
            answer.logprobs += event.logprobs
            answer.pieces_s.append(self._env.now)
        else:
            self._end(answer, event)

    def _end(self, answer: Answer, end: Finished | ShoalError) -> None:
        answer.end, answer.end_s = end, self._env.now
        self._ended(answer)

    # ------------------------------------------------------------ machines that come and go

    def add_live(self, worker: VirtualWorker) -> None:
        """A worker has loaded and is there."""
        self._live[worker.info.worker] = worker
        self._answered_s[worker.info.worker] = self._env.now

    def node_left(self, node: NodeId) -> None:
        """A machine is gone, for new workers too; that its workers are dead shows by itself."""
        self._nodes.discard(node)
        self._leaving.discard(node)

    def node_joined(self, node: NodeId) -> None:
        self._nodes.add(node)
        self.recover()

    def connection_closed(self, worker: WorkerId) -> None:
        """A worker's process has ended and its sockets told so."""
        if not self._network.is_cut(worker, DRIVER):
            self.lose(worker)

    def lose(self, worker: WorkerId) -> None:
        """A worker counts as lost, whether it knows or not; it may speak again, and is not heard."""
        lost = self._live.pop(worker, None)
        if lost is None:
            return
        self._env.process(self._end_ghost(lost))
        if self.placement is not None and lost.info in self.placement.stages:
            now_s = self._env.now
            self._up_time.go_down(now_s if lost.silent_since_s is None else lost.silent_since_s, now_s)
        self.driver.lose_worker(worker, self._env.now)
        self.recover()

    def _end_ghost(self, ghost: VirtualWorker) -> Process:
        """In the end its lease runs out, or the head reaches its machine."""
        yield self._env.timeout(10.0)
        ghost.kill()

    def leave(self, node: NodeId) -> None:
        """A machine asks to go."""
        self._leaving.add(node)
        self.recover()

    def _handed_over(self, leaving: WorkerId) -> None:
        self._handing.discard(leaving)
        self._retire(leaving)
        self.recover()

    def _retire(self, worker: WorkerId) -> None:
        gone = self._live.pop(worker, None)
        if gone is not None:
            self.driver.lose_worker(worker, self._env.now)
            gone.kill()

    def recover(self) -> None:
        """Look at the facts and do what they ask for."""
        facts = self._facts()
        decision = decide(facts)
        for standby in decision.give_up:
            self._retire(standby.worker)
        for start in decision.starts:
            self._starting.append(start)
            self._env.process(self._load(start))
        if decision.stranded:
            self.was_stranded = True
            layers = ", ".join(map(str, decision.stranded))
            error = NodeLost(node="virtual", layers=layers, cause="no machine is left that could hold them")
            self.driver.fail_all(error, self._env.now)
        if decision.placement is not None and decision.placement != self.placement:
            self._note_owners(decision.placement)
            self.placement = decision.placement
            limits = [self._live[w.worker].engine.limits for w in decision.placement.workers]
            capacity = Capacity.smallest(limits, journal_bytes=self._config.journal_bytes)
            self.driver.set_placement(decision.placement, capacity, self._env.now)
        for leaving, successor in decision.hand_overs:
            if leaving.worker not in self._handing:
                self._handing.add(leaving.worker)
                self.driver.hand_over(leaving.worker, successor.worker, self._env.now)
        stages = () if self.placement is None else self.placement.stages
        for worker in self.live:
            if worker.info.node in self._leaving and worker.info not in stages:
                self._retire(worker.info.worker)
        self._flush()

    def _note_owners(self, placement: Placement) -> None:
        """An epoch has one owner a stage, once and for all."""
        owners = tuple(stage.worker for stage in placement.stages)
        if self._owners.setdefault(placement.epoch, owners) != owners:
            raise AssertionError(
                f"two owners at epoch {placement.epoch}: {self._owners[placement.epoch]}, {owners}"
            )

    def _facts(self) -> Facts:
        config = self._config
        held = Counter[NodeId]()
        for worker in self._live.values():
            held[worker.info.node] += config.slice_bytes[worker.info.layers]
        for start in self._starting:
            held[start.node] += config.slice_bytes[start.layers]
        return Facts(
            ranges=config.ranges,
            placement=self.placement,
            live=tuple(worker.info for worker in self._live.values()),
            nodes=tuple(
                NodeFact(node, config.node_bytes[node] - held[node])
                for node in sorted(self._nodes - self._leaving)
            ),
            starting=tuple(self._starting),
            survive=config.survive,
            slice_bytes=config.slice_bytes,
            leaving=frozenset(self._leaving),
        )

    def _load(self, start: Start) -> Process:
        yield self._env.timeout(self._config.load_s(start.layers))
        self._starting.remove(start)
        if start.node in self._nodes:
            self.add_live(self._start_worker(start.node, start.layers))
        self.recover()

    # ------------------------------------------------------------ clocks

    def _ping(self) -> Process:
        """A worker that has not answered for a while is gone; a ping takes no time here."""
        while True:
            yield self._env.timeout(PING_INTERVAL_S)
            for name, worker in list(self._live.items()):
                silent = worker.is_dead or worker.is_frozen or self._network.is_cut(name, DRIVER)
                if not silent:
                    self._answered_s[name] = self._env.now
                elif self._env.now - self._answered_s[name] > PING_PATIENCE_S:
                    self.lose(name)

    def _tick(self) -> Process:
        while True:
            yield self._env.timeout(TICK_S)
            self.driver.tick(self._env.now)
            self._flush()

    def _heartbeat(self) -> Process:
        while True:
            yield self._env.timeout(HEARTBEAT_S)
            self.driver.heartbeat()
            self._flush()

    # ------------------------------------------------------------ the driver's messages and actions

    def _deliver(self, message: Message, rows: Rows | None) -> None:
        assert isinstance(message, ToDriver)
        self.driver.receive(message, self._env.now)
        self._flush()

    def _flush(self) -> None:
        for action in self.driver.take_actions():
            match action:
                case SendTo():
                    self._network.send(DRIVER, action.to, action.message, None)
                case Deliver():
                    self._hand_over(self._by_session[action.session], action.event)
                case LinkCut():
                    self.lose(action.to_replace)
                case Resumed():
                    self.stalls_s.append(action.stall_s + self._up_time.take_unnoticed_s())
                case HandedOver():
                    self._handed_over(action.leaving)
                case StageSilent():
                    pass  # whether it still answers is seen by pings
        self._up_time.note(self._env.now, is_routed=self.driver.is_routed)

    @property
    def up_s(self) -> float:
        """Seconds so far in which all stages were there and the route led along them."""
        return self._up_time.up_s(self._env.now)

    @property
    def live(self) -> tuple[VirtualWorker, ...]:
        return tuple(self._live.values())

    def describe(self, infos: Sequence[WorkerInfo] = ()) -> str:
        """One line for a failing run."""
        unended = [a.request.request_id for a in self.answers if a.end is None and not a.cancelled]
        workers = [(w.info.worker, w.core.num_sessions, w.core.num_queued) for w in self.live]
        return (
            f"unended {unended}, driver {self.driver.num_active} active {self.driver.num_waiting} waiting "
            f"{self.driver.num_steps_in_flight} steps, routed {self.driver.is_routed}, workers {workers}"
        )
