"""Clusters as recovery may find them, for properties: any workers, machines, losses and leaves."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from shoal.control.recovery import Facts, NodeFact, Start
from shoal.core.placement import Endpoint, Epoch, NodeId, Placement, Standby, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange

MAX_RANGES, MAX_NODES, MAX_WORKERS = 4, 5, 9


def worker_on(node: NodeId, layers: LayerRange, number: int) -> WorkerInfo:
    return WorkerInfo(WorkerId(f"w{number}"), node, layers, Endpoint("127.0.0.1", 1, "key"), 2, 3)


def ranges_of(num_ranges: int) -> tuple[LayerRange, ...]:
    """Stages of two layers each."""
    return tuple(LayerRange(2 * number, 2 * number + 2) for number in range(num_ranges))


@st.composite
def placements(
    draw: st.DrawFn, workers: Sequence[WorkerInfo], ranges: Sequence[LayerRange]
) -> Placement | None:
    """A placement of these workers, of which some may have died since; None where no worker was
    ever there for some range, or before the first."""
    by_range = [[worker for worker in workers if worker.layers == layers] for layers in ranges]
    if not all(by_range) or draw(st.integers(0, 4)) == 4:
        return None
    stages = tuple(draw(st.sampled_from(candidates)) for candidates in by_range)
    standbys = [
        Standby(worker, is_hot=draw(st.booleans()))
        for worker in workers
        if worker not in stages and draw(st.booleans())
    ]
    return Placement(Epoch(draw(st.integers(1, 9))), stages, tuple(standbys))


@st.composite
def facts(draw: st.DrawFn, *, is_calm: bool = False) -> Facts:
    """is_calm: no machine leaves, nothing is being started and nothing has failed."""
    ranges = ranges_of(draw(st.integers(1, MAX_RANGES)))
    nodes = [NodeId(f"n{number}") for number in range(draw(st.integers(1, MAX_NODES)))]
    pairs = st.tuples(st.sampled_from(nodes), st.sampled_from(ranges))
    # Mostly a pipeline that stood a moment ago: of the others there is little to decide.
    stages = [(draw(st.sampled_from(nodes)), layers) for layers in ranges if draw(st.integers(0, 9)) < 9]
    held = stages + draw(st.lists(pairs, max_size=MAX_WORKERS - len(stages)))
    workers = [worker_on(node, layers, number) for number, (node, layers) in enumerate(held)]
    dead = draw(st.sets(st.sampled_from(workers), max_size=4)) if workers else set()
    joined = draw(st.sets(st.sampled_from(nodes))) if draw(st.booleans()) else set()
    leaving = frozenset() if is_calm else frozenset(draw(st.sets(st.sampled_from(nodes), max_size=2)))
    starts = st.builds(Start, st.sampled_from(nodes), st.sampled_from(ranges))
    return Facts(
        ranges=ranges,
        placement=draw(placements(workers, ranges)),
        live=tuple(worker for worker in workers if worker not in dead),
        nodes=tuple(NodeFact(node, draw(st.integers(0, 5))) for node in nodes if node not in leaving),
        starting=() if is_calm else tuple(draw(st.lists(starts, max_size=2))),
        survive=draw(st.integers(0, 2)),
        slice_bytes={layers: draw(st.integers(1, 3)) for layers in ranges},
        leaving=leaving,
        failed=frozenset() if is_calm else frozenset(draw(st.sets(starts, max_size=3))),
        joined=frozenset(joined),
    )


def machine_of(facts: Facts, node: NodeId) -> str:
    """What is lost together: with real machines there, all nodes of the head are one."""
    return node if node in facts.joined or not facts.joined else "the head"


def holders(facts: Facts, layers: LayerRange) -> set[str]:
    """Machines that stay and hold these layers."""
    workers = [w for w in facts.live if w.layers == layers and w.node not in facts.leaving]
    return {machine_of(facts, worker.node) for worker in workers}


def has_room(facts: Facts, layers: LayerRange) -> bool:
    """Whether a machine that does not hold these layers yet could load them now."""
    return any(
        fact.free_bytes >= facts.slice_bytes[layers]
        and machine_of(facts, fact.node) not in holders(facts, layers)
        and Start(fact.node, layers) not in facts.failed
        for fact in facts.nodes
    )
