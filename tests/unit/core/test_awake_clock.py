"""A clock that does not count the time in which nobody read it."""

from __future__ import annotations

from shoal.core.awake_clock import AwakeClock


def test_it_goes_like_any_clock_while_it_is_read() -> None:
    clock = AwakeClock(10.0, longest_gap_s=0.5)
    assert [clock.read(10.25), clock.read(10.5), clock.read(11.0)] == [10.25, 10.5, 11.0]


def test_a_gap_counts_only_so_much_and_is_never_made_up_for() -> None:
    clock = AwakeClock(10.0, longest_gap_s=0.5)
    clock.read(10.25)
    assert clock.read(70.25) == 10.75
    assert clock.read(70.5) == 11.0
    assert clock.awake_s == 11.0
