"""Times up and down, with what was noticed late."""

from __future__ import annotations

from shoal.simulator.up_time import UpTime


def test_it_is_down_until_there_is_a_route_and_while_there_is_none() -> None:
    found = UpTime(0.0)
    assert found.up_s(2.0) == 0.0
    found.note(2.0, is_routed=True)
    found.note(5.0, is_routed=False)
    assert found.up_s(6.0) == 3.0
    found.note(7.0, is_routed=True)
    assert found.up_s(8.0) == 4.0


def test_a_loss_counts_from_when_it_happened_and_its_lateness_is_told_once() -> None:
    found = UpTime(0.0)
    found.note(0.0, is_routed=True)
    found.go_down(4.0, 5.5)
    found.note(5.5, is_routed=False)
    assert found.up_s(6.0) == 4.0
    assert (found.take_unnoticed_s(), found.take_unnoticed_s()) == (1.5, 0.0)


def test_who_was_gone_before_the_route_stood_ends_it_only_from_then_on() -> None:
    found = UpTime(0.0)
    found.note(3.0, is_routed=True)
    found.go_down(1.0, 4.0)
    assert found.up_s(9.0) == 0.0
