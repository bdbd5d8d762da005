"""Standbys: who is fed computes what the stage computes and keeps it to itself."""

from __future__ import annotations

import pytest

from shoal.core.placement import WorkerId
from shoal.wire.messages import Pull, Result, StageReport, Step
from tests.unit.worker.one_worker import (
    AFTER,
    BEFORE,
    ME,
    OneWorker,
    entry,
    expected_draw,
    expected_rows,
    opened,
    rows_of,
)


def _feed(worker: OneWorker, start: int, stop: int, *, epoch: int = 1, sample: bool = False) -> None:
    """A step as a hot standby gets it: without a route."""
    opens = (opened(1),) if start == 0 else ()
    step = Step(epoch, 7, worker.sender, (), (entry(1, start, stop, sample=sample),), opens)
    worker.receive(step, None if worker.place == "first" else rows_of(1, start, stop))


@pytest.mark.parametrize("epoch", [0, 1, 9])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_fed_step_is_computed_and_nothing_is_sent_or_reported_whatever_its_epoch(
    place: str, epoch: int
) -> None:
    worker = OneWorker(place)
    _feed(worker, 0, 4, epoch=epoch)
    assert worker.work() == 1
    assert worker.sent == []
    assert worker.core.last_step_received == 7


def test_what_was_fed_is_in_the_journal_when_the_standby_takes_over() -> None:
    worker = OneWorker()
    _feed(worker, 0, 4)
    worker.work()
    worker.take_peers(2)
    worker.step(entry(1, 0, 4), epoch=2)
    assert worker.work() == 0
    (sent,) = worker.take_sends(Step)
    assert sent.to == AFTER
    assert sent.rows.tobytes() == expected_rows(1, 0, 4).tobytes()


def test_what_was_drawn_behind_a_fed_step_is_told_by_the_standby_that_takes_over() -> None:
    worker = OneWorker("last")
    _feed(worker, 0, 4, sample=True)
    worker.work()
    worker.take_peers(2)
    worker.step(entry(1, 0, 4, sample=True), epoch=2)
    assert worker.work() == 0
    (result,) = worker.take(Result)
    assert [output.token for output in result.outputs] == [expected_draw(1, 4)]


def test_a_standby_that_was_not_fed_for_a_while_pulls_what_it_missed() -> None:
    worker = OneWorker()
    _feed(worker, 0, 4)
    _feed(worker, 8, 12)
    worker.work()
    assert [(s.to, s.message.start, s.message.stop) for s in worker.take_sends(Pull)] == [(BEFORE, 4, 8)]
    worker.refill(1, 4, 4)
    assert worker.work() == 2
    assert worker.sent == []
    worker.take_peers(2)
    worker.step(entry(1, 8, 12), epoch=2)
    worker.work()
    (sent,) = worker.take_sends(Step)
    assert sent.rows.tobytes() == expected_rows(1, 8, 12).tobytes()


def test_a_stage_feeds_standbys_the_same_entries_and_rows_and_no_route() -> None:
    worker = OneWorker()
    worker.take_peers(1, feeds=["h2", "h3"])
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.work()
    onward, *fed = worker.take_sends(Step)
    assert (onward.to, [send.to for send in fed]) == (AFTER, ["h2", "h3"])
    for send in fed:
        assert send.rows is onward.rows
        assert send.message == Step(1, 1, ME, (), onward.message.entries, onward.message.opens)


def test_what_the_journal_answers_is_fed_too() -> None:
    worker = OneWorker()
    worker.hold(1, 8)
    worker.take_peers(1, feeds=["h2"])
    worker.step(entry(1, 0, 8))
    assert worker.work() == 0
    assert [send.to for send in worker.take_sends(Step)] == [AFTER, "h2"]


def test_whom_a_stage_feeds_is_as_its_newest_placement_says() -> None:
    worker = OneWorker()
    worker.take_peers(1, feeds=["h2"])
    worker.take_peers(1)
    worker.take_peers(0, feeds=["h2"])
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    worker.work()
    assert [send.to for send in worker.take_sends(Step)] == [AFTER]


def test_who_is_fed_feeds_nobody() -> None:
    worker = OneWorker()
    worker.take_peers(1, feeds=["h2"])
    worker.sent.clear()
    _feed(worker, 0, 4)
    worker.work()
    assert worker.sent == []


def test_received_and_reported_are_only_steps_that_have_a_route() -> None:
    worker = OneWorker()
    worker.step(entry(1, 0, 4), opens=[opened(1)])
    assert len(worker.acknowledge()) == 1
    worker.work()
    assert len(worker.take(StageReport)) == 1
    _feed(worker, 4, 8)
    assert worker.acknowledge() == []
    worker.work()
    assert worker.take(StageReport) == []


# ---------------------------------------------------------------- a new predecessor


def test_what_was_asked_of_the_old_predecessor_is_asked_of_the_new_one_at_once() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 8), opens=[opened(1)])
    worker.work()
    assert [send.to for send in worker.take_sends(Pull)] == [BEFORE]
    worker.take_peers(2, predecessor="w9")
    (asked,) = worker.take_sends(Pull)
    assert asked.to == "w9"
    assert asked.message == Pull(2, 1, 0, 0, 4, ME)


def test_where_the_predecessor_stays_nothing_is_asked_twice() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 8), opens=[opened(1)])
    worker.work()
    worker.sent.clear()
    worker.take_peers(2)
    assert worker.take(Pull) == []


def test_a_new_predecessor_gets_all_tries() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 8), opens=[opened(1)])
    worker.work()
    for number in range(1, 20):  # all that it has
        worker.tick_at(2.0 * number)
    worker.take_peers(2, predecessor="w9")
    worker.sent.clear()
    worker.tick_at(100.0)
    assert [send.to for send in worker.take_sends(Pull)] == [WorkerId("w9")]


def test_what_has_arrived_already_is_not_asked_of_a_new_predecessor() -> None:
    worker = OneWorker()
    worker.step(entry(1, 4, 8), opens=[opened(1)])
    worker.work()
    worker.refill(1, 0, 4)
    worker.sent.clear()
    worker.take_peers(2, predecessor="w9")
    assert worker.take(Pull) == []
    worker.work()
    assert worker.core.num_sessions == 1
