"""Workers that leave: when their sessions have arrived, and when that is given up."""

from __future__ import annotations

import pytest

from shoal.core.placement import WorkerId
from shoal.pipeline.actions import HandedOver
from shoal.pipeline.hand_overs import DEADLINE_S, HandOvers
from shoal.wire.messages import HandingOver, StateTaken

OLD, NEW, OTHER = WorkerId("old"), WorkerId("new"), WorkerId("other")
PRESENT = (OLD, NEW, OTHER)


def _begun() -> HandOvers:
    hand_overs = HandOvers()
    hand_overs.begin(OLD, NEW, 0.0)
    return hand_overs


def test_who_leaves_is_told_once() -> None:
    hand_overs = _begun()
    assert hand_overs.take_untold() == [(OLD, NEW)]
    assert hand_overs.take_untold() == []


def test_it_is_complete_when_the_successor_holds_every_session_that_was_named() -> None:
    hand_overs = _begun()
    hand_overs.take(StateTaken(1, NEW))
    assert hand_overs.finished([1, 2], PRESENT, 1.0) == [], "nothing has been named"
    hand_overs.take(HandingOver((1, 2), OLD))
    assert hand_overs.finished([1, 2], PRESENT, 1.0) == []
    hand_overs.take(StateTaken(2, OTHER))
    hand_overs.take(HandingOver((), OTHER))
    assert hand_overs.finished([1, 2], PRESENT, 1.0) == [], "another one's word"
    hand_overs.take(StateTaken(2, NEW))
    assert hand_overs.finished([1, 2], PRESENT, 1.0) == [HandedOver(OLD, NEW, is_complete=True)]
    assert hand_overs.finished([1, 2], PRESENT, 1.0) == []


def test_sessions_that_have_ended_meanwhile_are_not_waited_for() -> None:
    hand_overs = _begun()
    hand_overs.take(HandingOver((1, 2), OLD))
    hand_overs.take(StateTaken(1, NEW))
    assert hand_overs.finished([1], PRESENT, 1.0) == [HandedOver(OLD, NEW, is_complete=True)]


def test_with_no_session_there_is_nothing_to_wait_for() -> None:
    hand_overs = _begun()
    hand_overs.take(HandingOver((), OLD))
    assert hand_overs.finished([5], PRESENT, 1.0) == [HandedOver(OLD, NEW, is_complete=True)]


@pytest.mark.parametrize("lost", [OLD, NEW])
def test_a_loss_on_either_side_ends_it(lost: WorkerId) -> None:
    hand_overs = _begun()
    present = [worker for worker in PRESENT if worker != lost]
    assert hand_overs.finished([1], present, 1.0) == [HandedOver(OLD, NEW, is_complete=False)]


def test_time_ends_it() -> None:
    hand_overs = _begun()
    hand_overs.take(HandingOver((1,), OLD))
    assert hand_overs.finished([1], PRESENT, DEADLINE_S - 0.1) == []
    assert hand_overs.finished([1], PRESENT, DEADLINE_S) == [HandedOver(OLD, NEW, is_complete=False)]


def test_two_that_leave_are_kept_apart() -> None:
    hand_overs = _begun()
    hand_overs.begin(OTHER, WorkerId("newer"), 0.0)
    hand_overs.take(HandingOver((1,), OLD))
    hand_overs.take(HandingOver((1,), OTHER))
    hand_overs.take(StateTaken(1, "newer"))
    present = [*PRESENT, WorkerId("newer")]
    assert hand_overs.finished([1], present, 1.0) == [HandedOver(OTHER, WorkerId("newer"), is_complete=True)]
