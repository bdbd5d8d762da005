"""The driver's policy while machines come and go: the route changes, the answers do not."""

from __future__ import annotations

import pytest

from shoal.core.config import DriverConfig
from shoal.core.errors import ContextLengthExceeded
from shoal.core.placement import DRIVER, WorkerId
from shoal.pipeline.actions import HandedOver, LinkCut, Resumed
from shoal.pipeline.admission import Capacity
from shoal.wire.messages import (
    Closed,
    HandingOver,
    HandOverTo,
    Live,
    NeedOpen,
    Open,
    Output,
    Pull,
    Refill,
    Refused,
    Result,
    StateTaken,
    Step,
    ToDriver,
)
from tests.unit.pipeline.one_driver import STAGES, OneDriver, placement, request

# ---------------------------------------------------------------- a new epoch


def test_every_unfinished_entry_is_sent_again_along_a_new_route_once() -> None:
    driver = OneDriver()
    decoding = driver.submit(request(4, 9))
    driver.result(driver.take(Step)[0], 5)
    prompt = driver.submit(request(20, 5))
    before = driver.take(Step)
    assert {e.session for s in before for e in s.entries} == {decoding, prompt}
    driver.lose("w1")
    driver.place(placement(2, ["w0", "w5", "w2"]))
    for worker in ("w0", "w5", "w2"):
        assert driver.take(Step) == [], "not everybody knows of the route"
        driver.confirm(worker, 2)
    again = driver.take(Step)
    assert [(s.step_id, s.entries) for s in again] == [(s.step_id, s.entries) for s in before]
    assert all((s.epoch, s.route) == (2, ("w5", "w2", DRIVER)) for s in again)
    assert [[o.session for o in s.opens] for s in again] == [[e.session for e in s.entries] for s in again]
    for worker in ("w0", "w5", "w2"):
        driver.confirm(worker, 2)
    assert driver.take(Step) == []


def test_confirmations_of_an_older_placement_do_not_count() -> None:
    driver = OneDriver()
    driver.place(placement(2))
    for worker in STAGES:
        driver.confirm(worker, 1)
    assert not driver.core.is_routed
    assert driver.told() == [(worker, 2) for worker in STAGES]
    driver.tick_at(0.4)
    assert driver.told() == []
    driver.confirm("w1", 2)
    driver.tick_at(0.5)
    assert driver.told() == [("w0", 2), ("w2", 2)]


def test_while_there_is_no_route_requests_wait_and_nothing_is_sent_again() -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.sends.clear()
    driver.lose("w1")
    later = driver.submit()
    driver.tick_at(500.0)
    assert (driver.take(Step), driver.core.num_waiting) == ([], 1)
    driver.route_along(placement(2))
    driver.answer_all(5)
    assert driver.text(session) == driver.text(later) == "5 5 5 5 5 "


def test_tries_of_an_old_route_are_not_held_against_the_new_one() -> None:
    driver = OneDriver()  # two tries
    session = driver.submit()
    for now_s in (10.0, 30.0):
        driver.tick_at(now_s)
    driver.lose("w1")
    driver.route_along(placement(2))
    driver.tick_at(39.9)
    driver.take(Step)
    driver.tick_at(40.0)
    assert (len(driver.take(Step)), driver.end(session)) == (1, None)


def test_the_stall_is_told_with_the_first_result_of_the_new_route() -> None:
    driver = OneDriver()
    driver.submit()
    driver.sends.clear()
    driver.now_s = 5.0
    driver.lose("w1")
    driver.now_s = 6.0
    driver.lose("w2")
    driver.now_s = 7.0
    driver.route_along(placement(2, ["w0", "w5", "w6"]))
    step = driver.take(Step)[0]
    assert driver.take_events() == []
    driver.now_s = 9.0
    driver.result(step, 5, sender="w6")
    driver.result(driver.take(Step)[0], 5, sender="w6")
    assert driver.take_events() == [Resumed(2, 4.0)]


def test_where_nobody_waited_there_was_no_stall() -> None:
    driver = OneDriver()
    driver.lose("w1")
    driver.route_along(placement(2, ["w0", "w5", "w2"]))
    driver.submit()
    driver.result(driver.take(Step)[0], 5)
    assert driver.take_events() == []


def test_requests_that_wait_and_no_longer_fit_are_refused_at_once() -> None:
    driver = OneDriver(capacity=Capacity(cells=100, sequences=4, batch_tokens=16))
    running, big, small = driver.submit(request(60, 10)), driver.submit(request(60, 30)), driver.submit()
    driver.lose("w1")
    driver.route_along(placement(2), Capacity(cells=80, sequences=4, batch_tokens=16))
    assert isinstance(driver.end(big), ContextLengthExceeded)
    assert (driver.end(running), driver.end(small)) == (None, None)
    assert driver.core.num_active == 2


# ---------------------------------------------------------------- within an epoch


def test_within_an_epoch_steps_flow_on_while_standbys_are_told_and_nothing_is_sent_again() -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    driver.place(placement(1, hot={"h0": 0}, warm={"x1": 1}))
    assert driver.told() == [("h0", 1), ("x1", 1)]
    driver.result(step, 5)
    sends = [s.to for s in driver.sends if isinstance(s.message, Step)]
    assert sends == ["w0"], "who has not confirmed is not fed"
    (step,) = driver.take(Step)
    for worker in ("h0", "x1", *STAGES):
        driver.confirm(worker, 1)
    assert driver.take(Step) == []
    driver.result(step, 6)
    assert driver.text(session) == "5 6 "
    assert driver.take_events() == []


def test_a_hot_standby_of_the_first_stage_gets_the_same_entries_and_no_route() -> None:
    driver = OneDriver()
    driver.route_along(placement(1, hot={"h0": 0, "h1": 1}))
    driver.sends.clear()
    driver.submit()
    steps = [(s.to, s.message) for s in driver.sends if isinstance(s.message, Step)]
    (to_stage, stage_step), (to_standby, standby_step) = steps
    assert (to_stage, to_standby) == ("w0", "h0")
    assert isinstance(stage_step, Step)
    assert isinstance(standby_step, Step)
    assert (stage_step.route, standby_step.route) == (("w1", "w2", DRIVER), ())
    assert (standby_step.entries, standby_step.opens) == (stage_step.entries, stage_step.opens)


# ---------------------------------------------------------------- who is not heard


def _messages_of(sender: str, session: int, step: Step) -> list[ToDriver]:
    output = Output(session, 0, 0, 4, 11)
    return [
        Result(step.epoch, step.step_id, sender, (output,)),
        Refused(session, sender, "late"),
        NeedOpen(session, sender),
        NeedOpen(99, sender),
        Pull(1, session, 0, 0, 4, sender),
        Closed((session,), sender),
    ]


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_is_not_in_the_placement_or_was_lost_is_not_heard(is_lost: bool) -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    ghost = "w2" if is_lost else "w9"
    if is_lost:
        driver.lose(ghost)
    driver.sends.clear()
    for message in _messages_of(ghost, session, step):
        driver.receive(message)
    assert (driver.delivered, driver.sends, driver.core.num_steps_in_flight) == ({}, [], 1)


def test_only_the_last_stage_speaks_for_results() -> None:
    driver = OneDriver()
    driver.route_along(placement(1, hot={"h2": 2}))
    session = driver.submit()
    step = driver.take(Step)[0]
    for sender in ("w1", "h2"):
        driver.result(step, 11, sender=sender)
    assert driver.text(session) == ""
    driver.result(step, 12)
    assert driver.text(session) == "12 "


def test_the_heartbeat_goes_to_everybody_who_lives_and_no_one_else() -> None:
    driver = OneDriver()
    driver.route_along(placement(1, hot={"h0": 0}))
    driver.lose("w1")
    driver.sends.clear()
    driver.core.heartbeat()
    driver.look()
    assert [s.to for s in driver.sends if isinstance(s.message, Live)] == ["w0", "w2", "h0"]


# ---------------------------------------------------------------- pulls, by mode


def test_an_exact_pull_is_answered_in_the_chunks_of_the_first_computation_and_another_evenly() -> None:
    config = DriverConfig(chunk_tokens=5, resend_after_s=10.0, hop_deadline_s=1e6)
    driver = OneDriver(config, Capacity(cells=200, sequences=4, batch_tokens=6))
    session = driver.submit(request(12, 9))
    driver.sends.clear()
    driver.receive(Pull(1, session, 0, 2, 12, "w0", True))
    driver.receive(Pull(1, session, 0, 2, 11, "w0", False))
    driver.receive(Pull(1, session, 0, 2, 99, "w0", False))
    exact, even, whole = driver.take(Refill)
    assert (exact.start, exact.lengths) == (2, (3, 5, 2))
    assert (even.start, even.lengths) == (2, (6, 3))
    assert (whole.lengths, whole.tokens) == ((6, 4), tuple(range(102, 112)))


def test_stages_are_told_to_replay_exactly_only_for_a_session_that_was_alone() -> None:
    driver = OneDriver()
    alone = driver.submit()
    first = driver.take(Step)[0]
    driver.submit()
    driver.sends.clear()
    driver.receive(NeedOpen(alone, "w1"))
    assert [o.exact_replay for o in first.opens] == [True]
    assert [o.exact_replay for o in driver.take(Open)] == [False]


def test_in_invariant_mode_any_chunks_will_do() -> None:
    driver = OneDriver(DriverConfig(chunk_tokens=8, invariant=True))
    driver.submit()
    assert [o.exact_replay for step in driver.take(Step) for o in step.opens] == [False]


# ---------------------------------------------------------------- polite leaves


def test_who_leaves_is_told_only_when_everybody_knows_its_successor() -> None:
    driver = OneDriver()
    driver.place(placement(1, hot={"s1": 1}))
    driver.core.hand_over(WorkerId("w1"), WorkerId("s1"), 0.0)
    driver.look()
    for worker in ("s1", "w0", "w1"):
        driver.confirm(worker, 1)
        assert driver.take(HandOverTo) == []
    driver.confirm("w2", 1)
    assert driver.take(HandOverTo, to="w1") == [HandOverTo(1, "s1")]


def test_the_route_may_change_when_the_successor_holds_all_live_sessions() -> None:
    driver = OneDriver()
    driver.route_along(placement(1, hot={"s1": 1}))
    first, second = driver.submit(), driver.submit()
    driver.core.hand_over(WorkerId("w1"), WorkerId("s1"), 0.0)
    driver.receive(HandingOver((first, second), "w1"))
    driver.receive(StateTaken(first, "s1"))
    assert driver.take_events() == []
    driver.core.cancel(second, 0.0)
    driver.tick_at(0.1)
    assert driver.take_events() == [HandedOver(WorkerId("w1"), WorkerId("s1"), is_complete=True)]


def test_a_hand_over_whose_worker_is_lost_is_over() -> None:
    driver = OneDriver()
    driver.route_along(placement(1, hot={"s1": 1}))
    driver.submit()
    driver.core.hand_over(WorkerId("w1"), WorkerId("s1"), 0.0)
    driver.lose("w1")
    driver.tick_at(0.1)
    assert driver.take_events() == [HandedOver(WorkerId("w1"), WorkerId("s1"), is_complete=False)]


# ---------------------------------------------------------------- room that comes back


def test_a_stage_that_confirms_no_close_is_cut_off_and_its_loss_gives_the_room_back() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=1, batch_tokens=16))
    first, second = driver.submit(), driver.submit()
    driver.core.cancel(first, 0.0)
    for worker in ("w0", "w2"):
        driver.receive(Closed((first,), worker))
    for tries in range(2):  # as many as the config allows
        driver.tick_at(10.0 + 10.0 * tries)
    assert driver.take_events() == [LinkCut(DRIVER, WorkerId("w1"))]
    driver.lose("w1")
    driver.route_along(placement(2, ["w0", "w5", "w2"]))
    assert (driver.core.num_waiting, second in driver.core._sessions) == (0, True)


def test_stages_that_a_new_route_leaves_behind_hold_no_room() -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.core.cancel(session, 0.0)
    driver.route_along(placement(2, ["w0", "w8", "w9"]))
    assert driver.core.admission.num_sequences == 1
    driver.receive(Closed((session,), "w0"))
    assert driver.is_empty
