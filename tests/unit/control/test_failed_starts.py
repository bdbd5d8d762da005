"""Layers that cannot be loaded: tried on other machines, then told to the streams, then tried again."""

from __future__ import annotations

from shoal.control.cluster_state import ClusterState
from shoal.control.recovery import MAX_FAILED_STARTS, Decision, Start, decide
from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.interface import EngineLimits

LAYERS, OTHERS = LayerRange(0, 4), LayerRange(4, 8)
LIMITS = EngineLimits(
    cells=100, max_sequences=1, max_batch_tokens=8, row_width_in=8, row_width_out=8, mixes_chunks=True,
    can_trim=True, state_bytes=0,
)  # fmt: skip


def new_state(num_nodes: int, *, survive: int = 0) -> ClusterState:
    """A cluster that has lost everything; all nodes have the same room."""
    nodes = [NodeId(f"n{number}") for number in range(num_nodes)]
    return ClusterState((LAYERS,), nodes, survive, {LAYERS: 1, OTHERS: 1}, free_bytes=lambda node, held: 10)


def fail(state: ClusterState, start: Start) -> None:
    state.begin(start)
    state.start_failed(start)


def fail_next(state: ClusterState) -> Decision:
    """Fail what is decided on now; what is decided on then."""
    for start in decide(state.facts()).starts:
        fail(state, start)
    return decide(state.facts())


def worker(node: NodeId, layers: LayerRange) -> WorkerInfo:
    return WorkerInfo(WorkerId(f"{node}-w"), node, layers, Endpoint("127.0.0.1", 1, "key"), 2, 3)


def test_layers_that_failed_on_one_machine_are_tried_on_another() -> None:
    state = new_state(2)
    [first] = decide(state.facts()).starts
    [second] = fail_next(state).starts
    assert {first.node, second.node} == set(state.nodes)


def test_layers_that_failed_on_every_machine_are_stranded() -> None:
    state = new_state(2)
    assert fail_next(state).stranded == ()
    decision = fail_next(state)
    assert (decision.starts, decision.stranded) == ((), (LAYERS,))


def test_layers_that_failed_often_enough_are_stranded_though_others_might_be_tried() -> None:
    state = new_state(MAX_FAILED_STARTS + 5)
    for _ in range(MAX_FAILED_STARTS - 1):
        assert fail_next(state).stranded == ()
    assert fail_next(state).stranded == (LAYERS,)


def test_what_failed_is_tried_again_when_it_is_forgiven() -> None:
    state = new_state(1)
    assert fail_next(state).starts == ()
    state.forgive(OTHERS)
    assert decide(state.facts()).starts == ()
    state.forgive(LAYERS)
    assert decide(state.facts()).starts == (Start(NodeId("n0"), LAYERS),)


def test_nothing_is_forgiven_while_another_machine_tries() -> None:
    state = new_state(2)
    [under_way] = fail_next(state).starts
    state.begin(under_way)
    state.forgive(LAYERS)
    state.start_failed(under_way)
    assert decide(state.facts()).stranded == (LAYERS,)


def test_a_standby_that_failed_on_one_machine_is_tried_on_another() -> None:
    state = new_state(3, survive=1)
    owner = worker(NodeId("n0"), LAYERS)
    state.started(Start(owner.node, LAYERS), owner, LIMITS, 1.0)
    [first] = decide(state.facts()).starts
    [second] = fail_next(state).starts
    assert {first.node, second.node} == {"n1", "n2"}


def test_layers_that_loaded_after_all_are_held_against_no_machine() -> None:
    state = new_state(2, survive=1)
    [first] = decide(state.facts()).starts
    fail(state, first)
    owner = worker(next(node for node in state.nodes if node != first.node), LAYERS)
    state.started(Start(owner.node, LAYERS), owner, LIMITS, 1.0)
    assert decide(state.facts()).starts == (first,)
