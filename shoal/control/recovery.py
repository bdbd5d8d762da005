"""What to do when machines leave or come: who carries each stage now, and what must be started.

Pure, and without memory: `decide` looks at the facts as they are and says what should be. So a
second loss, the loss of a replacement, or a machine that returns in the middle is no special
case; it is just another look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from shoal.core.placement import Epoch, NodeId, Placement, Standby, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.pipeline.stage_statistics import ReplayEstimate

# Layers that cannot be loaded on so many machines fail for a reason of their own, and streams
# are told rather than kept waiting while all others are tried.
MAX_FAILED_STARTS = 3
THIS_MACHINE = "this machine"


class Rung(Enum):
    """How a lost stage is replaced, cheapest first (DESIGN section 5.3)."""

    HOT = "hot standby"
    WARM = "warm standby"
    LOAD = "fresh worker"


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A live machine that may hold workers. free_bytes: what more it may be given."""

    node: NodeId
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Start:
    """A worker to be started, or being started: `layers` on `node`."""

    node: NodeId
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a decision depends on.

    ranges: the stages' layers, in order. live: all live workers, whatever they do now. starting:
    workers under way. survive: machines that may be lost without fetching or loading weights.
    leaving: machines that want to go: they keep what they carry until a successor holds it.
    failed: starts that came to nothing a moment ago; they are not tried again yet.
    joined: nodes that are machines of their own. awaiting: layers that wait for one of them: they never
    had an owner, and the head's machine is not to take them.
    """

    ranges: tuple[LayerRange, ...]
    placement: Placement | None
    live: tuple[WorkerInfo, ...]
    nodes: tuple[NodeFact, ...]
    starting: tuple[Start, ...]
    survive: int
    slice_bytes: Mapping[LayerRange, int]
    leaving: frozenset[NodeId] = frozenset()
    failed: frozenset[Start] = frozenset()
    joined: frozenset[NodeId] = frozenset()
    awaiting: frozenset[LayerRange] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """placement: what should stand now, None while a stage has no owner. give_up: standbys whose memory
    a stage needs; they are ended before anything is started. starts: workers to be started. uncovered:
    layers without a live owner. stranded: those of them that nobody is loading and no machine can load,
    or that failed to load wherever it was tried. hand_overs: stages on machines that leave, with who takes
    their sessions."""

    placement: Placement | None
    starts: tuple[Start, ...]
    uncovered: tuple[LayerRange, ...]
    stranded: tuple[LayerRange, ...]
    hand_overs: tuple[tuple[WorkerInfo, WorkerInfo], ...] = ()
    give_up: tuple[WorkerInfo, ...] = ()


def decide(facts: Facts) -> Decision:
    """What should be, given what is."""
    owners = _owners(facts)
    uncovered = tuple(layers for layers in facts.ranges if layers not in owners)
    if uncovered:
        return _cover(facts, uncovered, {owner.worker for owner in owners.values()})
    stages = tuple(owners[layers] for layers in facts.ranges)
    hand_overs = _hand_overs(facts, stages)
    placement = _placement(facts, stages, {successor.worker for _, successor in hand_overs})
    return Decision(placement, _starts(facts, stages, hand_overs), (), (), hand_overs)


def rung_of(placement: Placement | None, worker: WorkerInfo) -> Rung:
    """What a worker was before it was made to carry a stage."""
    for standby in () if placement is None else placement.standbys:
        if standby.info.worker == worker.worker:
            return Rung.HOT if standby.is_hot else Rung.WARM
    return Rung.LOAD


def predict_stall_s(estimate: ReplayEstimate, rung: Rung, load_s: float) -> float:
    """Seconds from the change of the route to the next token: a step along the new route, behind
    the pull where the successor has no state, behind loading where it has no weights."""
    pull_s = 0.0 if rung is Rung.HOT else estimate.pull_s
    return load_s + pull_s + estimate.step_s


def if_lost(facts: Facts, node: NodeId) -> Rung | None:
    """What would replace a machine's stages if it were lost now: the slowest rung that is needed.
    None where nothing could."""
    remaining = tuple(worker for worker in facts.live if worker.node != node)
    nodes = tuple(fact for fact in facts.nodes if fact.node != node)
    after = replace(facts, live=remaining, nodes=nodes, starting=(), joined=facts.joined - {node})
    decision = decide(after)
    if decision.placement is None:
        return None if decision.stranded else Rung.LOAD
    before = set() if facts.placement is None else {stage.worker for stage in facts.placement.stages}
    rungs = [rung_of(facts.placement, s) for s in decision.placement.stages if s.worker not in before]
    return Rung.HOT if set(rungs) <= {Rung.HOT} else Rung.WARM


def _owners(facts: Facts) -> dict[LayerRange, WorkerInfo]:
    """Who carries each range: its owner while it lives, else the best that stands by."""
    live = {worker.worker for worker in facts.live}
    stages = () if facts.placement is None else facts.placement.stages
    owners = {stage.layers: stage for stage in stages if stage.worker in live}
    for layers in facts.ranges:
        candidates = [worker for worker in facts.live if worker.layers == layers]
        if layers in owners or not candidates:
            continue
        carried = Counter(owner.node for owner in owners.values())

        def cost(worker: WorkerInfo, carried: Counter[NodeId] = carried) -> tuple[bool, bool, int, str]:
            is_hot = rung_of(facts.placement, worker) is Rung.HOT
            return worker.node in facts.leaving, not is_hot, carried[worker.node], worker.worker

        owners[layers] = min(candidates, key=cost)
    return owners


def _hand_overs(facts: Facts, stages: tuple[WorkerInfo, ...]) -> tuple[tuple[WorkerInfo, WorkerInfo], ...]:
    """For each stage on a machine that leaves, the live worker elsewhere that can take it."""

    def cost(worker: WorkerInfo) -> tuple[bool, bool, str]:
        # Who is being sent sessions already is not exchanged for another in the middle of that.
        awaits_states = facts.placement is not None and facts.placement.awaits_states(worker)
        return not awaits_states, rung_of(facts.placement, worker) is not Rung.HOT, worker.worker

    pairs = []
    for stage in stages:
        if stage.node in facts.leaving:
            elsewhere = [w for w in facts.live if w.layers == stage.layers and w.node not in facts.leaving]
            if elsewhere:
                pairs.append((stage, min(elsewhere, key=cost)))
    return tuple(pairs)


def _starts(
    facts: Facts, stages: tuple[WorkerInfo, ...], hand_overs: tuple[tuple[WorkerInfo, WorkerInfo], ...]
) -> tuple[Start, ...]:
    """Successors for machines that leave come first; then redundancy."""
    have = {leaving.layers for leaving, _ in hand_overs} | {start.layers for start in facts.starting}
    for stage in stages:
        if stage.node in facts.leaving and stage.layers not in have:
            rooms = _rooms(facts, stage.layers)
            if rooms:
                return (Start(max(rooms, key=lambda node: (node.free_bytes, node.node)).node, stage.layers),)
    return _restore_redundancy(facts, stages)


def _placement(facts: Facts, stages: tuple[WorkerInfo, ...], successors: Collection[WorkerId]) -> Placement:
    """The placement of these stages; a new epoch only where the route differs."""
    carrying = {stage.worker for stage in stages}
    busy_nodes = {stage.node for stage in stages}
    standbys: list[Standby] = []
    for worker in facts.live:
        if worker.worker in carrying or worker.layers not in facts.ranges:
            continue
        if worker.worker in successors:
            standbys.append(Standby(worker, is_hot=True, awaits_states=True))
            continue
        if worker.node in facts.leaving:
            continue
        # One hot standby a machine, and only where no stage computes: feeding must cost nobody.
        is_hot = worker.node not in busy_nodes
        busy_nodes.add(worker.node)
        standbys.append(Standby(worker, is_hot))
    current = facts.placement
    if current is None:
        return Placement(Epoch(1), stages, tuple(standbys))
    epoch = current.epoch if current.stages == stages else Epoch(current.epoch + 1)
    return Placement(epoch, stages, tuple(standbys))


def _cover(facts: Facts, uncovered: tuple[LayerRange, ...], owners: Collection[WorkerId]) -> Decision:
    """Load what nobody holds where there is room for it, or where standbys can make room."""
    spare = _Spare(facts, owners)
    on_the_way = {start.layers for start in facts.starting}
    starts: list[Start] = []
    stranded: list[LayerRange] = []
    for layers in uncovered:
        if layers in on_the_way:
            continue
        nodes = [fact.node for fact in facts.nodes if Start(fact.node, layers) not in facts.failed]
        if layers in facts.awaiting:
            idle = _idle_joined(facts, starts)
            nodes = [node for node in nodes if node in idle]
        num_failed = sum(start.layers == layers for start in facts.failed)
        node = None if num_failed >= MAX_FAILED_STARTS else spare.take(nodes, facts.slice_bytes[layers])
        if node is None:
            stranded.append(layers)
        else:
            starts.append(Start(node, layers))
    return Decision(None, tuple(starts), uncovered, tuple(stranded), give_up=tuple(spare.given_up))


class _Spare:
    """Memory for stages that nobody holds: what is free, and what standbys take. owners: workers that
    carry a stage, or would if all had an owner."""

    def __init__(self, facts: Facts, owners: Collection[WorkerId]) -> None:
        self.given_up: list[WorkerInfo] = []
        self._slice_bytes = facts.slice_bytes
        self._free = {fact.node: fact.free_bytes for fact in facts.nodes}
        self._standbys = [worker for worker in facts.live if worker.worker not in owners]

    def take(self, nodes: Sequence[NodeId], need_bytes: int) -> NodeId | None:
        """Room for `need_bytes` on one of `nodes`: the one with the most that is free, else the one
        whose standbys have to give up least. None where there is none."""
        if not nodes:
            return None
        node = max(nodes, key=lambda name: (self._free[name], name))
        victims: list[WorkerInfo] = []
        if self._free[node] < need_bytes:
            choices = {name: self._victims(name, need_bytes) for name in nodes}
            possible = {name: found for name, found in choices.items() if found}
            if not possible:
                return None
            node = min(possible, key=lambda name: (self._bytes(possible[name]), name))
            victims = possible[node]
        for victim in victims:
            self._standbys.remove(victim)
        self.given_up += victims
        self._free[node] += self._bytes(victims) - need_bytes
        return node

    def _victims(self, node: NodeId, need_bytes: int) -> list[WorkerInfo]:
        """The fewest standbys on a machine, the largest first, that make the room; none where all are
        too few."""
        missing = need_bytes - self._free[node]
        there = [worker for worker in self._standbys if worker.node == node]
        victims: list[WorkerInfo] = []
        for worker in sorted(there, key=lambda w: (-self._slice_bytes.get(w.layers, 0), w.worker)):
            if self._bytes(victims) >= missing:
                break
            victims.append(worker)
        return victims if self._bytes(victims) >= missing else []

    def _bytes(self, workers: Sequence[WorkerInfo]) -> int:
        return sum(self._slice_bytes.get(worker.layers, 0) for worker in workers)


def _idle_joined(facts: Facts, starts: Collection[Start]) -> set[NodeId]:
    """Machines that have joined and carry nothing yet: each takes one of the stages that wait."""
    busy = {worker.node for worker in facts.live} | {start.node for start in (*facts.starting, *starts)}
    return {fact.node for fact in facts.nodes if fact.node in facts.joined and fact.node not in busy}


def _restore_redundancy(facts: Facts, stages: tuple[WorkerInfo, ...]) -> tuple[Start, ...]:
    """The next standby that is missing: one at a time, so that streams are not slowed by loading."""
    if facts.starting:
        return ()
    busy_nodes = {stage.node for stage in stages}
    by_need = sorted(facts.ranges, key=lambda layers: len(_holders(facts, layers)))
    for layers in by_need:
        holders = _holders(facts, layers)
        if len(holders) > facts.survive:
            continue
        rooms = [fact for fact in _rooms(facts, layers) if _machine(facts, fact.node) not in holders]
        if rooms:
            # A machine with one worker and no stage can keep it hot.
            num_workers = Counter(worker.node for worker in facts.live)

            def cost(fact: NodeFact, busy: Counter[NodeId] = num_workers) -> tuple[bool, int, int, str]:
                return fact.node in busy_nodes, busy[fact.node], -fact.free_bytes, fact.node

            return (Start(min(rooms, key=cost).node, layers),)
    return _employ_idle(facts, by_need)


def _employ_idle(facts: Facts, by_need: Sequence[LayerRange]) -> tuple[Start, ...]:
    """A machine that has joined and carries nothing stands by, needed or not: it came to help."""
    idle = _idle_joined(facts, ())
    for fact in facts.nodes:
        fitting = [layers for layers in by_need if fact in _rooms(facts, layers)]
        if fact.node in idle and fitting:
            return (Start(fact.node, fitting[0]),)
    return ()


def _rooms(facts: Facts, layers: LayerRange) -> list[NodeFact]:
    """Machines with memory for these layers, but for those where loading them has just failed."""
    need = facts.slice_bytes[layers]
    return [
        fact
        for fact in facts.nodes
        if fact.free_bytes >= need and Start(fact.node, layers) not in facts.failed
    ]


def _holders(facts: Facts, layers: LayerRange) -> set[str]:
    return {
        _machine(facts, worker.node)
        for worker in facts.live
        if worker.layers == layers and worker.node not in facts.leaving
    }


def _machine(facts: Facts, node: NodeId) -> str:
    """What is lost together. The head's nodes pretend to be machines until a real one is there."""
    return THIS_MACHINE if facts.joined and node not in facts.joined else node
