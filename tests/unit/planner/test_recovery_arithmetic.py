"""Availability in closed form, against the figures that are in print."""

from __future__ import annotations

import pytest

from shoal.catalogue.failure import Exponential, FailureModel, LemonMixture
from shoal.planner import recovery_arithmetic


@pytest.mark.parametrize(("copies", "share"), [(4, 0.84), (5, 0.968), (6, 0.9939), (7, 0.9988), (8, 0.9998)])
def test_copies_of_131_places_that_are_on_81_percent_of_the_time(copies: int, share: float) -> None:
    found = recovery_arithmetic.chain_availability(0.81, 131, copies)
    assert found == pytest.approx(share, abs=0.5 * 10 ** -len(str(share).partition(".")[2]))


def test_without_copies_the_chain_is_never_whole() -> None:
    assert recovery_arithmetic.chain_availability(0.81, 131) == pytest.approx(1e-12, rel=0.1)


def test_eight_copies_reach_three_nines() -> None:
    assert recovery_arithmetic.copies_needed(0.81, 131, 0.999) == 8
    assert recovery_arithmetic.copies_needed(0.001, 10_000, 0.999999) is None


def test_losses_add_up_over_machines_and_lemons_dominate() -> None:
    sound = FailureModel("x", "x", Exponential(1000.0), Exponential(10.0))
    assert recovery_arithmetic.losses_per_s(sound, 500) == 0.5
    mixed = FailureModel(
        "x", "x", LemonMixture(0.1, Exponential(1000.0), Exponential(10.0)), Exponential(10.0)
    )
    assert recovery_arithmetic.losses_per_s(mixed, 100) == pytest.approx(100 * (0.1 / 10 + 0.9 / 1000))


def test_outages_take_their_share_of_time() -> None:
    assert recovery_arithmetic.down_share(0.01, 100.0) == 0.5
    assert recovery_arithmetic.refill_s(1e9, 1e8) == 10.0
