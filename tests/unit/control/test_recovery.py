"""What recovery decides, for any cluster: who carries, who stands by, what is started."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.control.recovery import (
    MAX_FAILED_STARTS,
    Decision,
    Facts,
    NodeFact,
    Rung,
    Start,
    decide,
    if_lost,
    predict_stall_s,
    rung_of,
)
from shoal.core.placement import Epoch, NodeId, Placement, Standby, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.pipeline.stage_statistics import ReplayEstimate
from tests.unit.control.any_facts import facts, has_room, holders, ranges_of, worker_on

ONE, TWO = ranges_of(2)
N0, N1, N2, N3 = (NodeId(f"n{number}") for number in range(4))
A, B = worker_on(N0, ONE, 0), worker_on(N1, TWO, 1)

# Clusters are slow to draw, and how long it takes says nothing about a decision.
quick = settings(max_examples=60, deadline=None)


def _facts(
    *live: WorkerInfo,
    placement: Placement | None = None,
    free: dict[NodeId, int] | None = None,
    survive: int = 0,
    leaving: tuple[NodeId, ...] = (),
    failed: tuple[Start, ...] = (),
) -> Facts:
    """Two stages; one slice takes one byte."""
    nodes = tuple(NodeFact(node, free_bytes) for node, free_bytes in (free or {}).items())
    sizes = {ONE: 1, TWO: 1}
    return Facts(
        (ONE, TWO), placement, live, nodes, (), survive, sizes, frozenset(leaving), frozenset(failed)
    )


def _owners(decision: Decision) -> dict[LayerRange, WorkerInfo]:
    assert decision.placement is not None
    return {stage.layers: stage for stage in decision.placement.stages}


# ---------------------------------------------------------------- who carries each stage


@quick
@given(facts())
def test_every_range_has_an_owner_as_soon_as_a_live_worker_holds_each(facts: Facts) -> None:
    decision = decide(facts)
    held = {worker.layers for worker in facts.live}
    assert decision.uncovered == tuple(layers for layers in facts.ranges if layers not in held)
    assert (decision.placement is None) == bool(decision.uncovered)
    if decision.placement is not None:
        assert tuple(stage.layers for stage in decision.placement.stages) == facts.ranges
        assert set(decision.placement.workers) <= set(facts.live)


@quick
@given(facts())
def test_an_owner_that_lives_is_never_moved(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is not None and facts.placement is not None:
        for before, after in zip(facts.placement.stages, decision.placement.stages, strict=True):
            assert after == before or before not in facts.live


@quick
@given(facts())
def test_a_lost_stage_goes_to_a_hot_standby_where_one_lives(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is None or facts.placement is None:
        return
    for stage in decision.placement.stages:
        hot = facts.placement.hot_standbys(stage.layers.start)
        candidates = {
            w.worker for w in facts.live if w.layers == stage.layers and w.node not in facts.leaving
        }
        if stage not in facts.placement.stages and candidates & set(hot):
            assert stage.worker in hot


def test_a_hot_standby_takes_over_before_a_warm_one_and_that_is_a_new_epoch() -> None:
    warm, hot = worker_on(N2, ONE, 2), worker_on(N3, ONE, 3)
    placement = Placement(Epoch(4), (A, B), (Standby(warm, is_hot=False), Standby(hot, is_hot=True)))
    before = decide(_facts(A, B, warm, hot, placement=placement)).placement
    after = decide(_facts(B, warm, hot, placement=placement)).placement
    assert before is not None
    assert after is not None
    assert (before.stages, before.epoch) == ((A, B), 4)
    assert (after.stages, after.epoch) == ((hot, B), 5)


def test_of_warm_standbys_one_on_a_machine_without_a_stage_takes_over() -> None:
    busy, idle = worker_on(N1, ONE, 2), worker_on(N2, ONE, 3)
    placement = Placement(Epoch(4), (A, B), (Standby(busy, is_hot=False), Standby(idle, is_hot=False)))
    assert _owners(decide(_facts(B, busy, idle, placement=placement)))[ONE] == idle


@quick
@given(facts())
def test_a_stage_goes_to_a_machine_that_leaves_only_where_no_other_holds_it(facts: Facts) -> None:
    decision = decide(facts)
    before = () if facts.placement is None else facts.placement.stages
    for stage in () if decision.placement is None else decision.placement.stages:
        if stage.node in facts.leaving and stage not in before:
            assert holders(facts, stage.layers) == set()


@quick
@given(facts())
def test_the_epoch_grows_by_one_exactly_when_the_stages_change(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is None:
        return
    if facts.placement is None:
        assert decision.placement.epoch == 1
        return
    changed = decision.placement.stages != facts.placement.stages
    assert decision.placement.epoch == facts.placement.epoch + changed


@quick
@given(facts())
def test_a_decision_that_was_followed_is_not_made_again(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is not None:
        assert decide(replace(facts, placement=decision.placement)).placement == decision.placement


# ---------------------------------------------------------------- who stands by


@quick
@given(facts())
def test_hot_standbys_are_one_a_machine_and_only_where_no_stage_computes(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is None:
        return
    carrying = {stage.node for stage in decision.placement.stages}
    successors = {successor.worker for _, successor in decision.hand_overs}
    hot = [s.info for s in decision.placement.standbys if s.is_hot and s.info.worker not in successors]
    assert not carrying & {worker.node for worker in hot}
    assert max(Counter(worker.node for worker in hot).values(), default=1) == 1


@quick
@given(facts())
def test_who_lives_and_stays_stands_by_and_only_successors_await_states(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is None:
        return
    successors = {successor for _, successor in decision.hand_overs}
    staying = {worker for worker in facts.live if worker.node not in facts.leaving}
    standbys = [standby.info for standby in decision.placement.standbys]
    assert len(standbys) == len(set(standbys))
    assert set(standbys) == staying - set(decision.placement.stages)
    assert {s.info for s in decision.placement.standbys if s.awaits_states} == successors
    assert all(s.is_hot for s in decision.placement.standbys if s.awaits_states)


# ---------------------------------------------------------------- what is started


def _free_after_giving_up(facts: Facts, decision: Decision) -> dict[NodeId, int]:
    free = {fact.node: fact.free_bytes for fact in facts.nodes}
    for worker in decision.give_up:
        free[worker.node] += facts.slice_bytes[worker.layers]
    return free


@quick
@given(facts())
def test_nothing_is_started_that_is_being_started(facts: Facts) -> None:
    decision = decide(facts)
    assert len(set(decision.starts)) == len(decision.starts)
    assert not {start.layers for start in decision.starts} & {start.layers for start in facts.starting}


@quick
@given(facts())
def test_what_is_started_fits_on_machines_that_stay_and_did_not_just_fail(facts: Facts) -> None:
    decision = decide(facts)
    free = _free_after_giving_up(facts, decision)
    for start in decision.starts:
        assert start.node not in facts.leaving
        assert start not in facts.failed
        free[start.node] -= facts.slice_bytes[start.layers]
    assert all(free_bytes >= 0 for free_bytes in free.values())


@quick
@given(facts())
def test_layers_that_nobody_holds_are_loaded_or_loading_or_stranded(facts: Facts) -> None:
    decision = decide(facts)
    started = {start.layers for start in decision.starts}
    loading = {start.layers for start in facts.starting}
    for layers in decision.uncovered:
        assert (layers in started) + (layers in loading) + (layers in decision.stranded) == 1
    assert set(decision.stranded) <= set(decision.uncovered)


@quick
@given(facts())
def test_layers_are_stranded_only_where_no_machine_has_room_for_them(facts: Facts) -> None:
    decision = decide(facts)
    free = _free_after_giving_up(facts, decision)
    for start in decision.starts:
        free[start.node] -= facts.slice_bytes[start.layers]
    for layers in decision.stranded:
        failed = {start.node for start in facts.failed if start.layers == layers}
        room = [n for n, left in free.items() if left >= facts.slice_bytes[layers] and n not in failed]
        assert not room or len(failed) >= MAX_FAILED_STARTS


def test_layers_that_do_not_fit_behind_others_are_stranded_with_those_others_under_way() -> None:
    decision = decide(_facts(free={N0: 1}))
    assert decision.starts == (Start(N0, ONE),)
    assert (decision.uncovered, decision.stranded) == ((ONE, TWO), (TWO,))


# ---------------------------------------------------------------- standbys that make room


@quick
@given(facts())
def test_who_gives_up_is_nobody_that_a_stage_has_or_needs(facts: Facts) -> None:
    decision = decide(facts)
    assert len({worker.worker for worker in decision.give_up}) == len(decision.give_up)
    assert bool(decision.give_up) <= bool(decision.starts)
    rest = {worker.layers for worker in facts.live if worker not in decision.give_up}
    assert rest == {worker.layers for worker in facts.live}
    if facts.placement is not None:
        assert not set(decision.give_up) & set(facts.placement.stages)


def test_a_standby_makes_room_for_a_stage_that_nobody_holds() -> None:
    standby = worker_on(N2, ONE, 2)
    placement = Placement(Epoch(4), (A, B), (Standby(standby, is_hot=True),))
    decision = decide(_facts(A, standby, placement=placement, free={N0: 0, N2: 0}, survive=1))
    assert decision.give_up == (standby,)
    assert decision.starts == (Start(N2, TWO),)
    assert decision.stranded == ()


def test_no_standby_gives_up_where_a_machine_has_room() -> None:
    standby = worker_on(N2, ONE, 2)
    placement = Placement(Epoch(4), (A, B), (Standby(standby, is_hot=True),))
    decision = decide(_facts(A, standby, placement=placement, free={N0: 1, N2: 0}))
    assert (decision.give_up, decision.starts) == ((), (Start(N0, TWO),))


def test_of_two_lost_stages_one_takes_the_place_of_the_standby_that_there_is() -> None:
    three = ranges_of(3)
    owner, standby = worker_on(N0, three[0], 0), worker_on(N1, three[0], 1)
    nodes = (NodeFact(N0, 0), NodeFact(N1, 0))
    facts = Facts(three, None, (owner, standby), nodes, (), 1, dict.fromkeys(three, 1))
    decision = decide(facts)
    assert decision.give_up == (standby,)
    assert decision.starts == (Start(N1, three[1]),)
    assert decision.stranded == (three[2],)


def test_layers_that_fail_to_load_everywhere_cost_no_standby() -> None:
    standby = worker_on(N2, ONE, 2)
    failed = tuple(Start(NodeId(f"x{number}"), TWO) for number in range(MAX_FAILED_STARTS))
    decision = decide(_facts(A, standby, free={N0: 0, N2: 0}, failed=failed))
    assert (decision.give_up, decision.starts, decision.stranded) == ((), (), (TWO,))


# ---------------------------------------------------------------- redundancy


@quick
@given(facts())
def test_standbys_are_loaded_one_at_a_time(facts: Facts) -> None:
    decision = decide(facts)
    if decision.placement is not None:
        assert len(decision.starts) <= 1
        gone = [stage.layers for stage in decision.placement.stages if stage.node in facts.leaving]
        if facts.starting and decision.starts:
            assert decision.starts[0].layers in gone, "beside another start only for a machine that leaves"


@quick
@given(facts(is_calm=True))
def test_redundancy_ends_with_enough_holders_on_machines_of_their_own_or_no_room(facts: Facts) -> None:
    for number in range(100, 130):
        decision = decide(facts)
        if not decision.starts:
            break
        facts = _started(facts, decision, number)
    assert decide(facts).starts == ()
    if decide(facts).uncovered:
        return
    for layers in facts.ranges:
        enough = len(holders(facts, layers)) >= facts.survive + 1
        assert enough or not has_room(facts, layers)


def _started(facts: Facts, decision: Decision, number: int) -> Facts:
    """All that was decided on has loaded."""
    live = [*facts.live]
    free = {fact.node: fact.free_bytes for fact in facts.nodes}
    for index, start in enumerate(decision.starts):
        live.append(worker_on(start.node, start.layers, 10 * number + index))
        free[start.node] -= facts.slice_bytes[start.layers]
    return replace(facts, live=tuple(live), nodes=tuple(NodeFact(n, b) for n, b in free.items()))


def test_the_range_with_fewest_holders_gets_the_next_standby_where_it_can_be_kept_hot() -> None:
    spare = worker_on(N2, ONE, 2)
    decision = decide(_facts(A, B, spare, free={N0: 9, N2: 2, N3: 1}, survive=1))
    assert decision.starts == (Start(N3, TWO),)


def test_of_machines_that_are_alike_the_one_with_most_room_gets_the_standby() -> None:
    decision = decide(_facts(A, B, free={N0: 9, N1: 9, N2: 1, N3: 2}, survive=1))
    assert decision.starts == (Start(N3, ONE),)


def test_without_survivors_wanted_nothing_is_loaded() -> None:
    assert decide(_facts(A, B, free={N2: 9}, survive=0)).starts == ()


# ---------------------------------------------------------------- machines that leave


@quick
@given(facts())
def test_stages_are_handed_over_only_to_live_workers_on_machines_that_stay(facts: Facts) -> None:
    decision = decide(facts)
    stages = () if decision.placement is None else decision.placement.stages
    leaving = [stage for stage in stages if stage.node in facts.leaving]
    assert [owner for owner, _ in decision.hand_overs] == [s for s in leaving if holders(facts, s.layers)]
    for owner, successor in decision.hand_overs:
        assert successor in facts.live
        assert successor.layers == owner.layers
        assert successor.node not in facts.leaving


def test_a_hot_standby_is_the_successor_before_a_warm_one() -> None:
    warm, hot = worker_on(N2, ONE, 2), worker_on(N3, ONE, 3)
    placement = Placement(Epoch(1), (A, B), (Standby(warm, is_hot=False), Standby(hot, is_hot=True)))
    decision = decide(_facts(A, B, warm, hot, placement=placement, leaving=(N0,)))
    assert decision.hand_overs == ((A, hot),)


def test_a_successor_stays_the_successor_whoever_comes() -> None:
    earlier_in_order = worker_on(N3, ONE, 2)
    successor = worker_on(N2, ONE, 7)
    standbys = (
        Standby(successor, is_hot=True, awaits_states=True),
        Standby(earlier_in_order, is_hot=True),
    )
    placement = Placement(Epoch(1), (A, B), standbys)
    decision = decide(_facts(A, B, earlier_in_order, successor, placement=placement, leaving=(N0,)))
    assert decision.hand_overs == ((A, successor),)


def test_a_successor_is_loaded_where_most_room_is_and_before_any_standby() -> None:
    facts = _facts(A, B, free={N1: 1, N2: 3, N3: 2}, survive=1, leaving=(N0,))
    assert decide(facts).starts == (Start(N2, ONE),)
    assert decide(replace(facts, starting=(Start(N3, TWO),))).starts == (Start(N2, ONE),)
    assert decide(replace(facts, starting=(Start(N2, ONE),))).starts == ()


def test_where_no_machine_has_room_for_a_successor_the_owner_stays() -> None:
    decision = decide(_facts(A, B, free={N1: 0}, leaving=(N0,)))
    assert _owners(decision)[ONE] == A
    assert (decision.starts, decision.stranded, decision.hand_overs) == ((), (), ())


# ---------------------------------------------------------------- what would be


@quick
@given(facts(is_calm=True), st.data())
def test_the_rung_foretold_is_the_one_that_comes(facts: Facts, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from([fact.node for fact in facts.nodes]))
    after = decide(
        replace(
            facts,
            live=tuple(worker for worker in facts.live if worker.node != node),
            nodes=tuple(fact for fact in facts.nodes if fact.node != node),
            joined=facts.joined - {node},
        )
    )
    if after.placement is None:
        assert if_lost(facts, node) is (None if after.stranded else Rung.LOAD)
        return
    before = () if facts.placement is None else facts.placement.stages
    rungs = {rung_of(facts.placement, stage) for stage in after.placement.stages if stage not in before}
    slowest = Rung.HOT if rungs <= {Rung.HOT} else Rung.WARM
    assert if_lost(facts, node) is slowest


def test_a_rung_is_what_a_worker_was_before() -> None:
    hot, warm, fresh = (worker_on(N2, ONE, number) for number in (2, 3, 4))
    placement = Placement(Epoch(1), (A, B), (Standby(hot, is_hot=True), Standby(warm, is_hot=False)))
    assert [rung_of(placement, worker) for worker in (hot, warm, fresh)] == [Rung.HOT, Rung.WARM, Rung.LOAD]
    assert rung_of(None, hot) is Rung.LOAD


@pytest.mark.parametrize(
    ("rung", "load_s", "stall_s"), [(Rung.HOT, 0.0, 0.2), (Rung.WARM, 0.0, 3.2), (Rung.LOAD, 20.0, 23.2)]
)
def test_the_stall_foretold_is_a_step_and_the_pull_and_the_load_where_they_are_needed(
    rung: Rung, load_s: float, stall_s: float
) -> None:
    estimate = ReplayEstimate(step_s=0.2, pull_s=3.0)
    assert predict_stall_s(estimate, rung, load_s) == pytest.approx(stall_s)
