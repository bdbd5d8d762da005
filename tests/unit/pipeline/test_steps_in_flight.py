"""Which steps are on their way, and when each is overdue."""

from __future__ import annotations

from shoal.core.config import DriverConfig
from shoal.pipeline.scheduler import InFlight
from shoal.pipeline.stage_statistics import StageStatistics
from shoal.pipeline.steps_in_flight import MAX_PATIENCE_DOUBLINGS, StepsInFlight
from shoal.wire.messages import Entry


def _steps() -> tuple[StepsInFlight, StageStatistics]:
    statistics = StageStatistics()
    return StepsInFlight(DriverConfig(resend_after_s=10.0), statistics), statistics


def _entries(*sessions: int) -> tuple[Entry, ...]:
    return tuple(Entry(session, 0, 4, (1,)) for session in sessions)


def test_each_step_has_a_number_of_its_own_and_is_counted_by_kind() -> None:
    steps, _ = _steps()
    ids = [steps.add(_entries(n), is_prefill=n == 1, now_s=0.0).step_id for n in range(3)]
    assert ids == [1, 2, 3]
    assert (len(steps), steps.counts()) == (3, InFlight(2, 1))


def test_a_step_is_gone_when_the_last_of_its_entries_is_settled() -> None:
    steps, _ = _steps()
    record = steps.add(_entries(1, 2), is_prefill=False, now_s=0.0)
    steps.settle(1, 3)  # another entry of this session
    assert list(record.entries) == [1, 2]
    steps.settle(1, 4)
    assert list(record.entries) == [2]
    steps.settle(2, 4)
    assert len(steps) == 0


def test_an_ended_session_is_awaited_in_no_step() -> None:
    steps, _ = _steps()
    steps.add(_entries(1), is_prefill=True, now_s=0.0)
    steps.add(_entries(1, 2), is_prefill=False, now_s=0.0)
    steps.forget(1)
    (record,) = steps.overdue(99.0)
    assert list(record.entries) == [2]


def test_patience_doubles_with_each_try_up_to_a_limit() -> None:
    steps, _ = _steps()
    record = steps.add(_entries(1), is_prefill=False, now_s=0.0)
    waits = []
    for _ in range(MAX_PATIENCE_DOUBLINGS + 2):
        before = record.deadline_s
        steps.resent(record, before)
        waits.append(record.deadline_s - before)
    assert waits == [20.0, 40.0, 40.0, 40.0]


def test_it_learns_from_round_trips_of_steps_that_were_not_sent_again() -> None:
    steps, statistics = _steps()
    once = steps.add(_entries(1), is_prefill=True, now_s=0.0)
    again = steps.add(_entries(2), is_prefill=True, now_s=0.0)
    steps.resent(again, 10.0)
    steps.returned(again.step_id, 50.0)
    assert statistics.round_trip_s(is_prefill=True) == 0.0
    steps.returned(once.step_id, 6.0)
    assert statistics.round_trip_s(is_prefill=True) == 6.0
    steps.returned(77, 6.0)
    later = steps.add(_entries(3), is_prefill=True, now_s=100.0)
    assert later.deadline_s == 124.0
    assert steps.add(_entries(4), is_prefill=False, now_s=100.0).deadline_s == 110.0


def test_news_of_a_step_moves_its_deadline_and_of_an_unknown_one_nothing() -> None:
    steps, _ = _steps()
    record = steps.add(_entries(1), is_prefill=False, now_s=0.0)
    steps.received(99, 0, 5.0)
    steps.sent_on(99, 0, 5.0)
    assert (record.deadline_s, record.num_received, record.num_sent_on) == (10.0, 0, 0)
    steps.received(record.step_id, 0, 5.0)
    assert (record.deadline_s, record.num_received, record.num_sent_on) == (15.0, 1, 0)
    steps.sent_on(record.step_id, 0, 6.0)
    assert (record.deadline_s, record.num_received, record.num_sent_on) == (16.0, 1, 1)
    assert steps.overdue(15.9) == []
    assert steps.overdue(16.0) == [record]
