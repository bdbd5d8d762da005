"""How sessions come to be, wait, and end on one worker: opening, closing, and asking again."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.placement import DRIVER
from shoal.wire.messages import (
    Close,
    Closed,
    Live,
    NeedOpen,
    Pull,
    PullTaken,
    Refill,
    Refused,
    Step,
    Unanswered,
)
from shoal.worker.job import ClearSeq
from shoal.worker.journal_budget import WINDOW_TOKENS
from shoal.worker.pulling import MAX_OPEN_TRIES, MAX_PARKED_PARTS, MAX_PULL_TRIES
from tests.unit.worker.one_worker import (
    AFTER,
    BEFORE,
    ME,
    RETRY_S,
    OneWorker,
    ends_of,
    entry,
    expected_rows,
    opened,
    rows_of,
    tokens_of,
)

# ---------------------------------------------------------------- opening


def test_an_entry_of_an_unopened_session_is_parked_and_the_driver_asked() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4))
    worker.step(entry(1, 4, 6))
    assert worker.work() == 0
    (send,) = worker.take_sends(NeedOpen)
    assert (send.to, send.message) == (DRIVER, NeedOpen(1, ME))


def test_the_open_releases_what_was_parked_in_order() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 6))
    worker.step(entry(1, 0, 4))
    worker.work()
    worker.receive(opened(1))
    worker.work()
    assert not [s for s in worker.sent if isinstance(s.message, Pull)]
    assert [ends_of(s.entries)[0] for s in worker.take(Step)] == [(1, 0, 4), (1, 4, 6)]


def test_the_first_open_stays_whatever_a_later_one_says() -> None:
    worker = OneWorker()
    worker.receive(opened(1, reserved=64))
    worker.receive(opened(1, reserved=2))
    worker.step(entry(1, 0, 4))
    assert worker.work() == 1


def test_the_driver_is_asked_again_for_an_open_until_the_limit_and_the_session_then_freed() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4))
    worker.work()
    assert len(worker.take(NeedOpen)) == 1
    worker.acknowledge()
    for number in range(1, MAX_OPEN_TRIES):
        worker.tick_at(number * RETRY_S - 0.01)
        assert worker.sent == []
        worker.tick_at(number * RETRY_S)
        assert len(worker.take(NeedOpen)) == 1
    worker.tick_at(MAX_OPEN_TRIES * RETRY_S)
    assert (worker.core.num_sessions, worker.sent) == (0, [])


def test_a_pull_for_an_unknown_session_asks_the_driver_for_it() -> None:
    worker = OneWorker()
    worker.receive(Pull(1, 5, 0, 0, 4, AFTER))
    worker.tick_at(0.1)
    sent = [(send.to, send.message) for send in worker.take_sends((NeedOpen, PullTaken))]
    assert sent == [(AFTER, PullTaken(ME)), (DRIVER, NeedOpen(5, ME))]
    worker.receive(opened(5))
    assert [(p.session, p.start, p.stop) for p in worker.take(Pull)] == [(5, 0, 4)]


# ---------------------------------------------------------------- closing


def test_close_frees_everything_and_is_confirmed_however_often_it_comes() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    for _ in range(2):
        worker.receive(Close((1, 77)))
        (send,) = worker.take_sends(Closed)
        assert (send.to, send.message) == (DRIVER, Closed((1, 77), ME))
    worker.work()
    assert (worker.core.num_sessions, worker.core.journal_bytes, worker.engine.cells_used) == (0, 0, 0)


def test_closing_clears_the_engine_even_when_nothing_else_comes() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.receive(Close((1,)))
    job = worker.next_job()
    assert job is not None
    assert (job.ops, job.chunks) == ((ClearSeq(0),), ())


def test_the_sequence_of_a_closed_session_is_cleared_before_the_next_uses_it() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.receive(Close((1,)))
    worker.step(entry(2, 0, 4), opens=[opened(2, slot=0)])
    assert worker.work() == 1
    (send,) = worker.take_sends(Step)
    np.testing.assert_array_equal(send.rows, expected_rows(2, 0, 4))


def test_what_was_parked_or_asked_goes_with_its_session() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 6), opens=[opened(1)])
    worker.work()
    worker.receive(Pull(1, 1, 0, 0, 6, AFTER))
    worker.receive(Close((1,)))
    worker.acknowledge()
    worker.refill(1, 0, 4)
    worker.tick_at(10.0)
    assert (worker.work(), worker.sent, worker.core.num_queued) == (0, [], 0)


def test_live_closes_what_it_does_not_list_and_leaves_what_is_newer() -> None:
    worker = OneWorker()
    for session in (1, 2, 3):
        worker.hold(session, 4)
    worker.receive(Live(1, 2, (2,)))
    assert [worker.core._sessions.get(session) is not None for session in (1, 2, 3)] == [False, True, True]
    worker.step(entry(1, 4, 5))
    assert worker.work() == 0
    assert worker.take(Step) == []


# ---------------------------------------------------------------- asking again


def test_a_pull_without_a_word_is_sent_again_and_told_of_at_its_limit() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 6), opens=[opened(1)])
    worker.work()
    assert len(worker.take(Pull)) == 1
    worker.acknowledge()
    for number in range(1, MAX_PULL_TRIES):
        worker.tick_at(number * RETRY_S - 0.01)
        assert worker.sent == []
        worker.tick_at(number * RETRY_S)
        assert len(worker.take(Pull)) == 1
    worker.tick_at(MAX_PULL_TRIES * RETRY_S)
    told, asked = worker.take_sends((Unanswered, Pull, Refused))
    assert (told.to, told.message) == (DRIVER, Unanswered(1, ME, BEFORE))
    assert (asked.to, type(asked.message)) == (BEFORE, Pull)
    # It goes on, and says so again when all tries have been in vain once more.
    for number in range(1, MAX_PULL_TRIES):
        worker.tick_at((MAX_PULL_TRIES + number) * RETRY_S)
    assert [type(send.message) for send in worker.take_sends((Unanswered, Pull))] == [Pull] * (
        MAX_PULL_TRIES - 1
    )
    worker.tick_at(2 * MAX_PULL_TRIES * RETRY_S)
    assert len(worker.take(Unanswered)) == 1


@pytest.mark.parametrize(("sender", "is_told"), [(BEFORE, False), (AFTER, True)])
@pytest.mark.parametrize("answered", ["taken", "another"])
def test_who_is_asked_may_take_its_time_while_it_answers_any_pull(
    sender: str, is_told: bool, answered: str
) -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 6), opens=[opened(1)])
    worker.work()
    another = Refill(1, 2, 0, 0, tokens_of(2, 0, 4), (4,), sender)
    for number in range(1, 2 * MAX_PULL_TRIES):
        worker.receive(PullTaken(sender) if answered == "taken" else another, rows_of(2, 0, 4))
        worker.tick_at(number * RETRY_S)
    assert bool(worker.take(Unanswered)) is is_told


def test_a_pull_that_is_answered_at_once_is_not_confirmed_apart() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.receive(Pull(1, 1, 0, 0, 8, AFTER))
    assert [type(send.message) for send in worker.sent] == [Refill]


def test_a_pull_that_makes_progress_has_its_tries_back() -> None:
    worker = OneWorker()
    worker.step(entry(1, 40, 41), opens=[opened(1)])
    worker.work()
    for number in range(40):
        worker.tick_at(2 * number * RETRY_S)
        worker.tick_at((2 * number + 1) * RETRY_S)
        worker.refill(1, number, 1)
        worker.work()
    assert worker.take(Unanswered) == []
    assert worker.engine.cells_used == 41


def test_while_pulled_parts_are_queued_nothing_is_asked_again() -> None:
    worker = OneWorker()
    worker.step(entry(1, 8, 9), opens=[opened(1)])
    worker.work()
    worker.refill(1, 0, 4)
    worker.acknowledge()
    worker.tick_at(5 * RETRY_S)
    worker.refill(1, 0, 4)
    assert (worker.sent, worker.core.num_queued) == ([], 1)


def test_parked_entries_have_a_bound_and_the_first_ones_stay() -> None:
    worker = OneWorker()
    worker.receive(opened(1, reserved=200))
    for start in range(1, MAX_PARKED_PARTS + 4):
        worker.step(entry(1, start, start + 1))
        worker.work()
    worker.sent.clear()
    worker.refill(1, 0, 1)
    worker.work()
    assert len(worker.take(Step)) == MAX_PARKED_PARTS
    assert worker.core._pulling.parts_dropped == 3


def test_a_second_gap_widens_the_pull_that_is_under_way() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 6), opens=[opened(1)])
    worker.step(entry(1, 9, 10))
    worker.work()
    assert [(p.start, p.stop) for p in worker.take(Pull)] == [(0, 4)]
    worker.refill(1, 0, 4)
    worker.work()
    assert (worker.take(Pull)[-1].start, worker.core.num_queued) == (6, 0)
    worker.refill(1, 6, 3)
    worker.work()
    assert [ends_of(s.entries) for s in worker.take(Step)] == [[(1, 9, 10)]]


@pytest.mark.parametrize("lengths", [(3,), (5,), (4, 0), (5, -1)])
def test_a_refill_whose_lengths_do_not_add_up_is_refused(lengths: tuple[int, ...]) -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 6), opens=[opened(1)])
    worker.work()
    worker.receive(Refill(1, 1, 0, 0, tokens_of(1, 0, 4), lengths, BEFORE), rows_of(1, 0, 4))
    assert [r.session for r in worker.take(Refused)] == [1]


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (3, 6)])
def test_a_refill_that_does_not_reach_what_is_missing_is_ignored(start: int, stop: int) -> None:
    worker = OneWorker()
    worker.hold(1, 2)
    worker.step(entry(1, 6, 7))
    worker.work()
    worker.sent.clear()
    worker.refill(1, start, stop - start)
    assert (worker.core.num_queued, worker.sent) == (0, [])


def test_a_refill_that_nobody_asked_for_is_ignored() -> None:
    worker = OneWorker()
    worker.receive(opened(1))
    worker.refill(1, 0, 4)
    worker.refill(2, 0, 4)
    assert (worker.core.num_queued, worker.core.num_sessions, worker.sent) == (0, 1, [])


def test_a_long_pull_is_answered_in_windows() -> None:
    worker = OneWorker(max_batch_tokens=512)
    worker.receive(opened(1, reserved=4096))
    for start in range(0, 2048, 512):
        worker.step(entry(1, start, start + 512))
    worker.work()
    worker.receive(Pull(1, 1, 0, 0, 2048, AFTER))
    (refill,) = worker.take(Refill)
    assert sum(refill.lengths) == WINDOW_TOKENS == 1024
    worker.receive(Pull(1, 1, 0, 1024, 2048, AFTER))
    assert [(r.start, r.lengths) for r in worker.take(Refill)] == [(1024, (512, 512))]
