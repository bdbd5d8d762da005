"""The driver's policy: given requests, messages and the clock, what it sends and what readers get."""

from __future__ import annotations

import pytest

from shoal.core.config import DriverConfig
from shoal.core.errors import (
    Cancelled,
    ContextLengthExceeded,
    EngineError,
    NodeLost,
    NotReady,
    Overloaded,
    StageTimeout,
)
from shoal.core.placement import DRIVER
from shoal.core.sequence import Finished, FinishReason
from shoal.pipeline.admission import Capacity
from shoal.pipeline.protocol import DriverCore
from shoal.wire.messages import (
    Close,
    Closed,
    Live,
    NeedOpen,
    Open,
    Output,
    Pull,
    PullTaken,
    Received,
    Refill,
    Refused,
    Result,
    StageReport,
    Step,
)
from tests.support.digest_reference import NumberVocabulary
from tests.unit.pipeline.one_driver import (
    DRIVER_ENDPOINT,
    EOG,
    N_CTX,
    STAGES,
    OneDriver,
    placement,
    request,
)

# ---------------------------------------------------------------- the door


def test_before_there_is_a_route_requests_are_refused() -> None:
    core = DriverCore(DriverConfig(), NumberVocabulary(), N_CTX, DRIVER_ENDPOINT)
    with pytest.raises(NotReady, match="no placement yet"):
        core.submit(request(), 0.0)


@pytest.mark.parametrize(("prompt", "max_tokens", "fits"), [(95, 5, True), (95, 6, False), (101, 1, False)])
def test_a_request_must_fit_the_context(prompt: int, max_tokens: int, fits: bool) -> None:
    driver = OneDriver()
    if fits:
        driver.submit(request(prompt, max_tokens))
        return
    with pytest.raises(ContextLengthExceeded) as caught:
        driver.submit(request(prompt, max_tokens))
    assert (caught.value.prompt_tokens, caught.value.n_ctx) == (prompt, N_CTX)
    assert driver.is_empty
    assert driver.sends == []


def test_a_request_must_fit_the_smallest_stage_too() -> None:
    driver = OneDriver(capacity=Capacity(cells=50, sequences=4, batch_tokens=16))
    with pytest.raises(ContextLengthExceeded, match="50 tokens"):
        driver.submit(request(46, 5))


def test_past_the_bound_of_the_queue_requests_are_refused_at_once() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=1, batch_tokens=16))
    for _ in range(1 + driver.config.max_waiting):
        driver.submit()
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        driver.submit()
    assert (driver.core.num_active, driver.core.num_waiting) == (1, 3)


def test_choices_of_a_request_are_taken_in_together_even_past_the_bound() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=1, batch_tokens=16))
    sessions = driver.core.submit_choices([request()] * 9, 0.0)
    driver.look()
    assert len(set(sessions)) == 9
    assert (driver.core.num_active, driver.core.num_waiting) == (1, 8)
    with pytest.raises(Overloaded, match="8 requests are waiting"):
        driver.submit()
    for session in sessions:
        driver.answer_all(1)
        assert isinstance(driver.end(session), Finished)
        driver.confirm_closed(session)
    assert driver.is_empty


def test_where_one_choice_does_not_fit_none_is_taken_in() -> None:
    driver = OneDriver()
    with pytest.raises(ContextLengthExceeded):
        driver.core.submit_choices([request(), request(N_CTX, 1)], 0.0)
    driver.look()
    assert driver.is_empty
    assert driver.sends == []


def test_requests_are_admitted_in_order_even_where_a_later_one_would_fit() -> None:
    driver = OneDriver(capacity=Capacity(cells=100, sequences=4, batch_tokens=16))
    big, bigger, small = driver.submit(request(60, 10)), driver.submit(request(60, 10)), driver.submit()
    assert (driver.core.num_active, driver.core.num_waiting) == (1, 2)
    driver.answer_all(1)
    driver.confirm_closed(big)
    assert set(driver.core._sessions) == {bigger, small}


def test_room_is_given_to_the_next_only_when_every_stage_has_confirmed_the_close() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=1, batch_tokens=16))
    first, second = driver.submit(), driver.submit()
    driver.answer_all(1)
    assert isinstance(driver.end(first), Finished)
    for worker in STAGES[:2]:
        driver.receive(Closed((first,), worker))
    assert driver.core.num_active == 0
    driver.receive(Closed((first,), STAGES[2]))
    assert set(driver.core._sessions) == {second}
    assert driver.take(Step)[0].entries[0].session == second


def test_a_close_that_is_not_confirmed_is_sent_again_to_just_those_who_have_not() -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.core.cancel(session, 0.0)
    driver.look()
    assert driver.closes_to() == [(worker, (session,)) for worker in STAGES]
    driver.receive(Closed((session,), "w1"))
    driver.tick_at(9.9)
    assert driver.closes_to() == []
    driver.tick_at(10.0)
    assert driver.closes_to() == [("w0", (session,)), ("w2", (session,))]
    driver.confirm_closed(session)
    driver.tick_at(30.0)
    assert driver.closes_to() == []
    assert driver.is_empty


def test_a_closed_that_nobody_waits_for_changes_nothing() -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.confirm_closed(session)
    assert driver.core.admission.num_sequences == 1


# ---------------------------------------------------------------- steps


def test_a_prompt_goes_in_chunks_with_its_open_before_the_first_and_a_draw_behind_the_last() -> None:
    driver = OneDriver()
    session = driver.submit(request(20, 5))
    steps = driver.take(Step, to="w0")
    assert [(e.start, e.stop, e.sample) for s in steps for e in s.entries] == [
        (0, 8, False),
        (8, 16, False),
        (16, 20, True),
    ]
    assert [[o.session for o in s.opens] for s in steps] == [[session], [], []]
    opened = steps[0].opens[0]
    assert (opened.slot, opened.prompt_tokens, opened.reserved_tokens, opened.sampling.seed) == (0, 20, 25, 3)
    assert [(s.epoch, s.sender, s.route) for s in steps] == [(1, DRIVER, ("w1", "w2", DRIVER))] * 3
    assert [s.step_id for s in steps] == [1, 2, 3]


def test_an_answer_goes_on_token_by_token_to_its_length() -> None:
    driver = OneDriver()
    session = driver.submit(request(4, 3))
    starts = []
    for token in (11, 12, 13):
        (step,) = driver.take(Step)
        starts.append(step.entries[0].start)
        assert step.entries[0].tokens[-1] == {11: 103, 12: 11, 13: 12}[token]
        driver.result(step, token)
    assert starts == [0, 4, 5]
    assert driver.text(session) == "11 12 13 "
    assert driver.end(session) == Finished(FinishReason.LENGTH, 4, 3)
    driver.confirm_closed(session)
    assert driver.is_empty


@pytest.mark.parametrize(
    ("ignore_eog", "text", "end"),
    [
        (False, "5 ", Finished(FinishReason.STOP, 4, 2)),
        (True, "5 7 9 ", Finished(FinishReason.LENGTH, 4, 3)),
    ],
)
def test_the_end_of_generation_token_ends_an_answer_unless_it_is_ignored(
    ignore_eog: bool, text: str, end: Finished
) -> None:
    driver = OneDriver()
    session = driver.submit(request(4, 3, ignore_eog=ignore_eog))
    for token in (5, EOG, 9):
        for step in driver.take(Step):
            driver.result(step, token)
    assert (driver.text(session), driver.end(session)) == (text, end)


def test_a_stop_text_ends_an_answer_and_no_part_of_it_is_delivered() -> None:
    driver = OneDriver()
    session = driver.submit(request(4, 9, stop=("3 4",)))
    for token in (3, 2, 3, 4, 5):
        for step in driver.take(Step):
            driver.result(step, token)
    assert driver.text(session) == "3 2 "
    assert driver.end(session) == Finished(FinishReason.STOP, 4, 4)
    assert driver.core.num_steps_in_flight == 0


def test_sessions_that_decode_share_steps_and_those_in_flight_are_never_chosen_again() -> None:
    driver = OneDriver()
    for _ in range(4):
        driver.submit()
    seen: list[int] = []
    for _ in range(6):
        steps = driver.take(Step)
        in_flight = [e.session for s in steps for e in s.entries]
        assert len(in_flight) == len(set(in_flight))
        seen += in_flight
        for step in steps:
            driver.result(step, *[5] * len(step.entries))
    assert {seen.count(session) for session in set(seen)} == {5}


# ---------------------------------------------------------------- results that are not in order


def test_a_result_that_comes_twice_emits_once() -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    driver.result(step, 11)
    driver.result(step, 12)
    assert driver.text(session) == "11 "
    assert len(driver.take(Step)) == 1


def test_results_of_a_prompt_may_come_in_any_order() -> None:
    driver = OneDriver()
    session = driver.submit(request(20, 5))
    first, second, last = driver.take(Step)
    driver.result(last, 11)
    # It proves that what lies before was computed.
    assert driver.core.num_steps_in_flight == 1
    (decode,) = driver.take(Step)
    assert decode.entries[0].start == 20
    driver.result(second)
    driver.result(first)
    driver.result(decode, 12)
    assert driver.text(session) == "11 12 "


@pytest.mark.parametrize("epoch", [0, 2])
def test_results_of_another_epoch_are_refused(epoch: int) -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    driver.result(step, 11, epoch=epoch)
    assert driver.text(session) == ""
    assert driver.core.num_steps_in_flight == 1


@pytest.mark.parametrize(
    "output", [Output(1, 1, 0, 4, 11), Output(1, 0, 0, 3, 11), Output(1, 0, 1, 4, 11), Output(9, 0, 0, 4, 11)]
)
def test_results_of_entries_that_were_never_sent_are_ignored(output: Output) -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.receive(Result(1, 1, "w2", (output,)))
    assert (driver.text(session), driver.core.num_steps_in_flight) == ("", 1)


def test_a_sampled_entry_without_its_token_is_still_awaited_and_sent_again() -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    driver.result(step, None)
    driver.tick_at(10.0)
    (again,) = driver.take(Step)
    assert again.entries == step.entries
    driver.result(again, 11)
    assert driver.text(session) == "11 "


# ---------------------------------------------------------------- no answer


def test_a_step_without_a_result_is_sent_again_with_its_opens_and_the_same_entries() -> None:
    driver = OneDriver()
    session = driver.submit(request(20, 5))
    steps = driver.take(Step)
    driver.tick_at(9.9)
    assert driver.take(Step) == []
    driver.tick_at(10.0)
    again = driver.take(Step)
    assert [(s.step_id, s.entries) for s in again] == [(s.step_id, s.entries) for s in steps]
    assert [[o.session for o in s.opens] for s in again] == [[session]] * 3


def test_a_step_that_is_never_answered_ends_its_requests_after_the_last_try() -> None:
    driver = OneDriver()
    session, other = driver.submit(), driver.submit()
    mine, theirs = driver.take(Step)
    driver.result(theirs, 5)
    tries, now_s = 0, 0.0
    while driver.end(session) is None:
        now_s += 1.0
        assert now_s < 1000.0
        driver.tick_at(now_s)
        for step in driver.take(Step):
            if step.step_id == mine.step_id:
                tries += 1
                driver.receive(Received(1, mine.step_id, "w1"))
            else:
                driver.result(step, 5)
        if driver.end(other) is not None:
            driver.confirm_closed(other)
    error = driver.end(session)
    assert isinstance(error, StageTimeout)
    assert tries == driver.config.max_resends
    assert "3 times; 2 stages received it, 0 sent it on" in error.message
    assert isinstance(driver.end(other), Finished)
    driver.confirm_closed(session)
    assert driver.is_empty


def test_when_a_prompt_is_given_up_no_empty_step_is_sent_for_its_other_chunks() -> None:
    driver = OneDriver()
    session = driver.submit(request(16, 5))
    _, second = driver.take(Step)
    driver.now_s = 9.0
    driver.receive(Received(1, second.step_id, "w0"))
    # The first chunk is past its last try while the second, just as overdue, still has one.
    for now_s, num_resent in ((10.0, 1), (30.0, 2), (70.0, 0)):
        driver.tick_at(now_s)
        assert len(driver.take(Step)) == num_resent
    assert isinstance(driver.end(session), StageTimeout)


def test_news_of_a_step_moves_its_deadline() -> None:
    driver = OneDriver()
    driver.submit()
    (step,) = driver.take(Step)
    driver.now_s = 8.0
    driver.receive(Received(1, step.step_id, "w0"))
    driver.tick_at(17.9)
    assert driver.take(Step) == []
    driver.receive(StageReport(1, step.step_id, "w0", 0.0, 0.1, ()))
    driver.tick_at(27.8)
    assert driver.take(Step) == []
    driver.tick_at(27.9)
    assert len(driver.take(Step)) == 1


def test_slow_stages_get_four_of_their_own_round_trips() -> None:
    driver = OneDriver()
    driver.submit(request(4, 9))
    driver.now_s = 8.0
    driver.result(driver.take(Step)[0], 5)  # a prefill step; decode steps have their own figure
    driver.now_s = 16.0
    driver.result(driver.take(Step)[0], 5)  # a decode step took 8 s
    driver.tick_at(16.0 + 31.9)
    assert driver.take(Step)[1:] == []
    driver.tick_at(16.0 + 32.0)
    assert len(driver.take(Step)) == 1


# ---------------------------------------------------------------- a client that leaves


def test_a_waiting_request_that_is_cancelled_is_forgotten() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=1, batch_tokens=16))
    first, second = driver.submit(), driver.submit()
    driver.core.cancel(second, 0.0)
    driver.look()
    assert (driver.core.num_waiting, driver.closes_to()) == (0, [])
    driver.answer_all(1)
    driver.core.cancel(first, 0.0)
    driver.confirm_closed(first)
    assert driver.is_empty


@pytest.mark.parametrize("num_results", [0, 1, 3])
def test_a_running_request_that_is_cancelled_is_closed_on_every_stage(num_results: int) -> None:
    driver = OneDriver()
    session = driver.submit(request(20, 9))
    for _ in range(num_results):
        for step in driver.take(Step):
            driver.result(step, *[5 for e in step.entries if e.sample])
    driver.sends.clear()
    for _ in range(2):
        driver.core.cancel(session, 0.0)
        driver.look()
    assert driver.closes_to() == [(worker, (session,)) for worker in STAGES]
    assert driver.core.num_steps_in_flight == 0
    assert driver.end(session) is None
    driver.confirm_closed(session)
    assert driver.is_empty


def test_what_still_comes_of_a_cancelled_request_is_ignored() -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    driver.core.cancel(session, 0.0)
    driver.result(step, 5)
    driver.receive(Refused(session, "w1", "late"))
    assert driver.delivered == {}


def test_cancelling_the_head_of_the_queue_lets_the_next_one_in() -> None:
    driver = OneDriver(capacity=Capacity(cells=100, sequences=4, batch_tokens=16))
    driver.submit(request(60, 10))
    big, small = driver.submit(request(60, 10)), driver.submit()
    driver.core.cancel(big, 0.0)
    assert small in driver.core._sessions


# ---------------------------------------------------------------- what workers ask


def test_a_worker_that_lacks_an_open_gets_it_and_of_a_dead_session_a_close() -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.sends.clear()
    driver.receive(NeedOpen(session, "w1"))
    driver.receive(NeedOpen(99, "w1"))
    (opened, closed) = [s for s in driver.sends if s.to == "w1"]
    assert isinstance(opened.message, Open)
    assert (opened.message.session, opened.message.reserved_tokens) == (session, 9)
    assert closed.message == Close((99,))


def test_a_pull_is_answered_with_tokens_in_the_lengths_they_were_sent_in() -> None:
    driver = OneDriver()
    session = driver.submit(request(20, 9))
    for _ in range(4):
        for step in driver.take(Step):
            driver.result(step, *[5 for e in step.entries if e.sample])
    driver.sends.clear()
    driver.receive(Pull(1, session, 0, 0, 99, "w0"))
    driver.receive(Pull(1, session, 0, 12, 20, "w0"))
    whole, part = driver.take(Refill, to="w0")
    assert (whole.lengths, whole.start, whole.sender) == ((8, 8, 4, 1, 1, 1, 1), 0, DRIVER)
    assert whole.tokens == (*range(100, 120), 5, 5, 5, 5)
    assert (part.start, part.lengths[:3], part.tokens[:4]) == (12, (4, 4, 1), (112, 113, 114, 115))


def test_a_pull_for_a_dead_session_is_answered_with_a_close() -> None:
    driver = OneDriver()
    driver.receive(Pull(1, 99, 0, 0, 8, "w0"))
    assert driver.closes_to() == [("w0", (99,))]


@pytest.mark.parametrize(("attempt", "start"), [(1, 0), (0, -1), (0, 4), (0, 50)])
def test_a_pull_for_what_was_never_sent_is_confirmed_and_no_more(attempt: int, start: int) -> None:
    driver = OneDriver()
    session = driver.submit()
    driver.sends.clear()
    driver.receive(Pull(1, session, attempt, start, 60, "w0"))
    assert [(send.to, send.message) for send in driver.sends] == [("w0", PullTaken(DRIVER))]


def test_a_refusal_ends_one_request_and_no_other() -> None:
    driver = OneDriver()
    bad, good = driver.submit(), driver.submit()
    steps = driver.take(Step)
    driver.receive(Refused(bad, "w1", "its rows do not fit"))
    error = driver.end(bad)
    assert isinstance(error, EngineError)
    assert error.message == "w1 refused: its rows do not fit."
    assert driver.closes_to() == [(worker, (bad,)) for worker in STAGES]
    driver.result(steps[1], 5)
    assert driver.text(good) == "5 "


# ---------------------------------------------------------------- the worst


def test_with_no_way_to_go_on_every_request_ends_and_new_ones_are_refused() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=2, batch_tokens=16))
    sessions = [driver.submit() for _ in range(4)]
    driver.core.cancel(sessions[0], 0.0)
    driver.lose(STAGES[1])
    driver.core.fail_all(NodeLost(node="box", layers="[2, 4)", cause="it was unplugged"), 0.0)
    driver.look()
    for session in sessions[1:]:
        error = driver.end(session)
        assert isinstance(error, NodeLost)
        assert error.message == "Node box (layers [2, 4)) was lost: it was unplugged."
    with pytest.raises(NotReady, match=r"Node box .* unplugged") as caught:
        driver.submit()
    assert ".." not in caught.value.message
    for survivor in (STAGES[0], STAGES[2]):
        driver.receive(Closed(tuple(sessions), survivor))
    assert driver.is_empty
    driver.sends.clear()
    driver.core.heartbeat()
    driver.tick_at(1000.0)
    assert [(s.to, s.message) for s in driver.sends] == [
        ("w0", Live(1, sessions[1], ())),
        ("w2", Live(1, sessions[1], ())),
    ]


def test_a_new_route_after_a_loss_has_all_its_room() -> None:
    driver = OneDriver()
    for _ in range(4):
        driver.submit()
    driver.lose(STAGES[1])
    driver.core.fail_all(NodeLost(node="box", layers="[2, 4)", cause="gone"), 0.0)
    driver.route_along(placement(2, ["w5"]))
    driver.sends.clear()
    for _ in range(4):
        driver.submit()
    assert driver.core.num_waiting == 0
    assert {(s.to, s.message.epoch) for s in driver.sends if isinstance(s.message, Step)} == {("w5", 2)}


@pytest.mark.parametrize("worker", ["w8", "w9"])
def test_the_loss_of_a_worker_that_carries_no_stage_touches_nobody(worker: str) -> None:
    driver = OneDriver()
    driver.route_along(placement(1, hot={"w8": 1}))
    session = driver.submit()
    driver.lose(worker)
    assert driver.end(session) is None
    driver.submit()
    assert (driver.core.is_routed, driver.core.num_active) == (True, 2)


def test_when_the_head_ends_every_reader_is_told() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=1, batch_tokens=16))
    sessions = [driver.submit(), driver.submit()]
    driver.core.shut_down(0.0)
    driver.look()
    assert all(isinstance(driver.end(session), Cancelled) for session in sessions)
    assert (sessions[0],) in [s for _, s in driver.closes_to()]


def test_entries_in_flight_are_sent_along_a_new_route_as_soon_as_it_stands() -> None:
    driver = OneDriver()
    session = driver.submit()
    (step,) = driver.take(Step)
    driver.route_along(placement(2, ["w7", "w8"]))
    driver.result(step, 5)  # speaks for the past
    (again,) = [s for s in driver.sends if isinstance(s.message, Step)]
    assert again.to == "w7"
    assert isinstance(again.message, Step)
    assert (again.message.epoch, again.message.route, again.message.entries) == (
        2,
        ("w8", DRIVER),
        step.entries,
    )
    driver.result(again.message, 6, sender="w8")
    assert driver.text(session) == "6 "


# ---------------------------------------------------------------- heartbeat


def test_the_heartbeat_lists_exactly_the_sessions_that_live() -> None:
    driver = OneDriver(capacity=Capacity(cells=200, sequences=3, batch_tokens=16))
    first, second, third, waiting = (driver.submit() for _ in range(4))
    driver.core.cancel(second, 0.0)
    driver.look()
    driver.sends.clear()
    driver.core.heartbeat()
    driver.look()
    live = [(s.to, s.message) for s in driver.sends]
    # The one that waits was not admitted: it must not be taken for an ended one when it is.
    assert live == [(worker, Live(1, third, (first, third))) for worker in STAGES]
    assert waiting > third
