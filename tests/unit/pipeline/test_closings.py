"""Sessions that have ended, until every stage has said so."""

from __future__ import annotations

from shoal.core.placement import WorkerId
from shoal.pipeline.closings import Closings, Told

W0, W1 = WorkerId("w0"), WorkerId("w1")
AGAIN_S = 10.0


def _closings(max_told: int = 2) -> Closings:
    closings = Closings(AGAIN_S, max_told)
    closings.begin(7, [W1, W0], 0.0)
    return closings


def test_everybody_is_told_at_once_and_again_when_patience_ends() -> None:
    closings = _closings()
    assert closings.due(0.0) == [Told(7, (W0, W1), is_last_time=False)]
    assert closings.due(9.9) == []
    assert closings.confirm(7, W0) is False
    assert closings.due(10.0) == [Told(7, (W1,), is_last_time=False)]


def test_who_does_not_confirm_is_cut_off_after_the_last_time_and_told_on() -> None:
    closings = _closings(max_told=2)
    last_times = [told.is_last_time for now in range(7) for told in closings.due(now * AGAIN_S)]
    assert last_times == [False, False, True, False, False, True, False]


def test_a_session_is_closed_when_the_last_one_confirms_and_only_once() -> None:
    closings = _closings()
    assert [closings.confirm(7, worker) for worker in (W0, W0, W1, W1)] == [False, False, True, False]
    assert closings.due(1000.0) == []


def test_a_session_that_nobody_closes_is_not_confirmed() -> None:
    assert _closings().confirm(8, W0) is False


def test_who_has_left_need_not_confirm() -> None:
    closings = _closings()
    closings.begin(8, [W1], 0.0)
    assert closings.keep_only([W0, W1]) == []
    assert closings.keep_only([W0]) == [8]
    assert closings.due(0.0) == [Told(7, (W0,), is_last_time=False)]
    assert closings.keep_only([]) == [7]
