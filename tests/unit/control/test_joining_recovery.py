"""What machines that join are given: stages that wait for them first, then something to stand by for."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.control.cluster_state import ClusterState
from shoal.control.recovery import Start, decide
from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.interface import EngineLimits

FIRST, SECOND, THIRD = LayerRange(0, 2), LayerRange(2, 4), LayerRange(4, 6)
RANGES = (FIRST, SECOND, THIRD)
HEAD, A, B = NodeId("local-0"), NodeId("a"), NodeId("b")
LIMITS = EngineLimits(
    cells=100, max_sequences=1, max_batch_tokens=8, row_width_in=8, row_width_out=8, mixes_chunks=True,
    can_trim=True, state_bytes=0,
)  # fmt: skip


def new_state(
    *, awaiting: tuple[LayerRange, ...], room: Mapping[NodeId, int] | None = None, survive: int = 1
) -> ClusterState:
    """A head that carries what waits for nobody. room: of each machine, 1,000 MiB by default."""

    def free_bytes(node: NodeId, held_bytes: int) -> int:
        return (room or {}).get(node, 1000 * 2**20) - held_bytes

    state = ClusterState(RANGES, [HEAD], survive, dict.fromkeys(RANGES, 100 * 2**20), free_bytes, awaiting)
    for layers in RANGES:
        if layers not in awaiting:
            load(state, Start(HEAD, layers))
    return state


def load(state: ClusterState, start: Start) -> None:
    state.begin(start)
    info = WorkerInfo(
        WorkerId(f"{start.node}-{start.layers.start}"), start.node, start.layers, Endpoint("x", 1, "k"), 2, 3
    )
    state.started(start, info, LIMITS, 0.1)
    state.placement = decide(state.facts()).placement or state.placement


def test_layers_that_wait_for_a_machine_are_not_taken_by_the_head() -> None:
    decision = decide(new_state(awaiting=(SECOND, THIRD)).facts())
    assert decision.starts == ()
    assert decision.stranded == (SECOND, THIRD)


def test_each_machine_that_joins_takes_one_of_the_stages_that_wait() -> None:
    state = new_state(awaiting=(SECOND, THIRD))
    state.join(A)
    decision = decide(state.facts())
    assert decision.starts == (Start(A, SECOND),)
    assert decision.stranded == (THIRD,)
    load(state, Start(A, SECOND))
    assert decide(state.facts()).starts == ()
    state.join(B)
    assert decide(state.facts()).starts == (Start(B, THIRD),)


def test_a_machine_too_small_for_a_stage_does_not_get_it() -> None:
    state = new_state(awaiting=(THIRD,), room={A: 99 * 2**20})
    state.join(A)
    assert decide(state.facts()).stranded == (THIRD,)
    assert state.too_small_for([THIRD]) == "a has 99 MiB free and would need 100 MiB."


def test_once_somebody_had_them_the_head_takes_over_layers_that_waited() -> None:
    state = new_state(awaiting=(THIRD,))
    state.join(A)
    load(state, Start(A, THIRD))
    state.lose(WorkerId("a-4"), "gone")
    state.remove(A)
    assert decide(state.facts()).starts == (Start(HEAD, THIRD),)


def test_redundancy_counts_machines_so_that_one_that_joins_backs_up_the_heads_own() -> None:
    state = new_state(awaiting=())
    assert decide(state.facts()).starts == (), "the head cannot stand by for itself"
    state.join(A)
    backed_up = []
    for _ in RANGES:
        [start] = decide(state.facts()).starts
        backed_up.append(start)
        load(state, start)
    assert backed_up == [Start(A, layers) for layers in RANGES]


def test_a_machine_that_nobody_needs_stands_by_all_the_same() -> None:
    state = new_state(awaiting=(), survive=0)
    state.join(A)
    assert decide(state.facts()).starts == (Start(A, FIRST),)
    load(state, Start(A, FIRST))
    assert decide(state.facts()).starts == ()


def test_a_machine_that_leaves_is_free_to_go_when_it_carries_nothing() -> None:
    state = new_state(awaiting=())
    state.join(A)
    load(state, Start(A, FIRST))
    state.leave(A)
    assert state.left() == []
    state.retire(WorkerId("a-0"))
    assert state.left() == [A]
    state.remove(A)
    assert A not in state.nodes
    state.join(A)
    assert decide(state.facts()).starts == (Start(A, FIRST),), "it came back and is welcome"


def test_a_start_on_a_machine_that_has_gone_is_neither_waited_for_nor_held_against_the_layers() -> None:
    state = new_state(awaiting=(THIRD,))
    state.join(A)
    start = Start(A, THIRD)
    state.begin(start)
    state.remove(A)
    state.join(B)
    assert decide(state.facts()).starts == (Start(B, THIRD),)
    state.start_failed(start)
    assert state.facts().failed == frozenset()


def test_a_machine_may_join_while_the_facts_are_put_together() -> None:
    def free_bytes(node: NodeId, held_bytes: int) -> int:
        state.join(NodeId("late"))  # as the keeper's thread may while another reads
        return 2**30

    state = ClusterState(RANGES, [HEAD], 1, dict.fromkeys(RANGES, 100 * 2**20), free_bytes, RANGES)
    assert [fact.node for fact in state.facts().nodes] == [HEAD]
    assert [fact.node for fact in state.facts().nodes] == [HEAD, NodeId("late")]
