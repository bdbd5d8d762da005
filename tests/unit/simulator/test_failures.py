"""Absences: the stated uptimes, shares, profiles and rooms come out of the draws."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.catalogue.failure import Exponential, FailureModel, LemonMixture, Weibull
from shoal.catalogue.loader import load_catalogue
from shoal.core.units import DAY_S, HOUR_S
from shoal.planner.recovery_arithmetic import losses_per_s
from shoal.simulator.failures import Absences, draw_absences, share_present

HOUR = Exponential(HOUR_S)


def draw(model: FailureModel, *, machines: int = 2000, days: float = 1.0, **options: bool) -> Absences:
    return draw_absences(model, machines, days * DAY_S, np.random.default_rng(5), **options)


def share_there(absences: Absences, machines: int, at_s: float) -> float:
    away = (absences.since_s <= at_s) & (at_s < absences.until_s)
    return 1 - len(set(absences.machine[away].tolist())) / machines


@pytest.mark.parametrize(
    "uptime",
    [
        Exponential(2 * HOUR_S),
        Weibull(2.0, 2 * HOUR_S),
        LemonMixture(0.2, Exponential(9000), Exponential(900)),
    ],
)
def test_a_usual_population_loses_machines_at_its_long_run_rate(uptime: object) -> None:
    model = FailureModel("m", "m", uptime=uptime, repair=Exponential(60.0))  # type: ignore[arg-type]
    found = draw(model, machines=4000, all_present=False)
    began = int((found.since_s > 0).sum())
    cycle_losses = losses_per_s(model, 4000) * DAY_S
    assert began == pytest.approx(cycle_losses, rel=0.08)


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.0])
def test_a_usual_population_stays_at_its_availability_from_the_first_moment(shape: float) -> None:
    model = FailureModel("m", "m", uptime=Weibull(shape, 2 * HOUR_S), repair=HOUR)
    found = draw(model, machines=5000, all_present=False)
    for hour in (0.01, 1.0, 12.0, 23.9):
        assert share_there(found, 5000, hour * HOUR_S) == pytest.approx(model.availability, abs=0.03)


def test_everything_is_there_at_the_start_where_it_was_switched_on() -> None:
    model = FailureModel("m", "m", uptime=HOUR, repair=HOUR)
    found = draw(model)
    assert share_there(found, 2000, 0.0) == 1.0
    assert share_there(found, 2000, 0.5 * HOUR_S) == pytest.approx(0.5 + 0.5 * np.exp(-1.0), abs=0.03)


def test_first_uptimes_of_fresh_machines_follow_the_stated_survival() -> None:
    law = Weibull(0.5, HOUR_S)
    found = draw(FailureModel("m", "m", uptime=law, repair=HOUR), machines=20_000)
    first = np.full(20_000, np.inf)
    np.minimum.at(first, found.machine, found.since_s)
    for age_s in (600.0, HOUR_S, 4 * HOUR_S):
        assert float((first > age_s).mean()) == pytest.approx(law.survival(age_s), abs=0.01)


def test_lemons_are_lemons_for_good() -> None:
    law = LemonMixture(0.1, Exponential(100 * DAY_S), Exponential(HOUR_S))
    found = draw(FailureModel("m", "m", uptime=law, repair=Exponential(60.0)), machines=1000)
    counts = np.bincount(found.machine, minlength=1000)
    often = counts >= 8
    assert 60 < often.sum() < 140
    assert counts[often].sum() > 0.9 * counts.sum()


@pytest.mark.parametrize("name", ["net-cafe", "office"])
def test_the_share_of_machines_follows_the_profile(name: str) -> None:
    model = load_catalogue().failure(name)
    own = FailureModel("m", "m", model.uptime, model.repair, None, model.day_profile, model.week_profile)
    found = draw(own, machines=4000)
    for hour in (0.5, 6.0, 11.0, 17.5, 21.0):
        expected = share_present(own, hour * HOUR_S)
        assert share_there(found, 4000, hour * HOUR_S) == pytest.approx(expected, abs=0.04)


def test_a_week_profile_empties_the_office_at_the_weekend() -> None:
    model = load_catalogue().failure("office")
    monday, saturday = share_present(model, 10 * HOUR_S), share_present(model, 5 * DAY_S + 10 * HOUR_S)
    assert saturday < 0.2 * monday


def test_rooms_go_and_return_as_one() -> None:
    model = FailureModel(
        "m", "m", uptime=Exponential(1e9), repair=HOUR, room_size=10, room_loss=Exponential(6 * HOUR_S)
    )
    found = draw(model, machines=100)
    assert found.is_room.all()
    assert len(found) % 10 == 0
    for since_s in set(found.since_s.tolist()):
        gone = sorted(found.machine[found.since_s == since_s].tolist())
        assert gone == list(range(gone[0], gone[0] + 10))
        assert gone[0] % 10 == 0
    assert len(found) / 10 == pytest.approx(10 * DAY_S / (7 * HOUR_S), rel=0.4)


def test_absences_of_a_machine_never_overlap_and_come_in_order() -> None:
    model = load_catalogue().failure("volunteer")
    found = draw(model, machines=200, all_present=False)
    assert (np.diff(found.since_s) >= 0).all()
    for machine in range(200):
        own = found.machine == machine
        assert (found.since_s[own][1:] >= found.until_s[own][:-1]).all()


def test_the_same_generator_gives_the_same_absences() -> None:
    model = load_catalogue().failure("net-cafe")
    one, two = draw(model), draw(model)
    assert one.machine.tolist() == two.machine.tolist()
    assert one.since_s.tolist() == two.since_s.tolist()
