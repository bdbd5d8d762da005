"""Hypotheses judged by simulation: what only runs can tell, bounds from other speeds and losses, modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shoal.catalogue.failure import Exponential, LemonMixture, Weibull
from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.errors import ConfigError
from shoal.core.units import DAY_S
from shoal.planner.assumptions import default_assumptions
from shoal.planner.hypothesis import Claim, Figures, Hypothesis, Terms, Truth, judge
from shoal.simulator.coarse_error import FIRST_TOKEN_GAP
from shoal.simulator.fine import FineSimulation
from shoal.simulator.hypothesis_scenario import scenario_of
from shoal.simulator.hypothesis_simulation import SimulationMethod
from shoal.simulator.scenario import Churn, Mode
from shoal.simulator.scenario_scaling import scaled
from tests.unit.simulator.toy_scenarios import SHAKY, scenario

TERMS = Terms(duration_s=60.0, runs=2, arrivals_per_s=0.2, answer_tokens=16)


@pytest.fixture(scope="module")
def known() -> Catalogue:
    return load_catalogue()


def hypothesis(*claims: Claim, terms: Terms = TERMS, **changes: Any) -> Hypothesis:
    base = Hypothesis(
        name="x", says="x", machines="3xrtx-3060", model="qwen3-8b", quantisation="q4_0", link=None,
        failures="always-on", against="h100", streams=4, context_tokens=512, prompt_tokens=64,
        by="simulation", claims_to_hold=True, claims=claims, terms=terms,
    )  # fmt: skip
    return replace(base, **changes)


def simulated(known: Catalogue, asked: Hypothesis) -> Figures:
    return SimulationMethod(known, default_assumptions(known)).figures(asked)


def test_waits_are_judged_by_runs_at_all_speeds(known: Catalogue) -> None:
    asked = hypothesis(Claim("first_token_p90", 60.0, "slow"), Claim("first_token_p50", 1e-3, "quick"))
    figures = simulated(known, asked)
    found = judge(asked, figures)
    assert [claim.truth for claim in found.claims] == [Truth.TRUE, Truth.TRUE, Truth.FALSE]
    assert found.claims[1].by == "simulation"
    median = figures.known["first_token_p50"]
    assert median.low < median.value / 1.4
    assert median.high > median.value * 1.4
    near = hypothesis(Claim("first_token_p50", median.value * 1.2, "near"))
    assert judge(near, figures).truth is Truth.UNDECIDED


def test_the_same_seed_gives_the_same_figures_and_another_seed_others(known: Catalogue) -> None:
    one, two = (simulated(known, hypothesis()) for _ in range(2))
    other = simulated(known, hypothesis(terms=replace(TERMS, seed=9)))
    assert one == two
    assert one.known != other.known
    assert "seeds 1 to 2" in one.method
    assert "fine mode" in one.method


def test_what_no_run_has_is_the_estimates_and_says_so(known: Catalogue) -> None:
    found = simulated(known, hypothesis())
    assert found.known["power"].by == "estimate"
    assert found.known["token_time"].best is not None


def test_without_losses_nothing_is_said_about_losses(known: Catalogue) -> None:
    asked = hypothesis(Claim("availability", 0.5, "up"), Claim("throughput_under_losses", 1.0, "t"))
    found = judge(asked, simulated(known, asked))
    assert [claim.truth for claim in found.claims[1:]] == [Truth.UNDECIDED] * 2
    assert "simulate longer" in found.claims[1].reason


def test_losses_stall_answers_and_lower_availability(known: Catalogue) -> None:
    terms = replace(TERMS, duration_s=6 * 3600.0, mode="coarse", arrivals_per_s=0.2, spares=1, survive=1)
    claims = (Claim("availability", 0.1, "up"), Claim("stall_p90", 3600.0, "s"), Claim("lost", 0.9, "l"))
    asked = hypothesis(*claims, terms=terms, machines="6xrtx-3060", failures="net-cafe")
    figures = simulated(known, asked)
    found = judge(asked, figures)
    assert [claim.truth for claim in found.claims] == [Truth.TRUE] * 4
    assert figures.known["availability"].high < 1
    assert figures.known["lost"].high > 0  # though none may have been seen
    assert "coarse mode" in figures.known["lost"].why


def test_machines_that_hold_nothing_are_false_without_a_run(known: Catalogue) -> None:
    asked = hypothesis(machines="2xrtx-3060", model="llama-70b")
    found = judge(asked, simulated(known, asked))
    assert found.truth is Truth.FALSE
    assert "cannot hold" in found.claims[0].reason


def test_the_coarse_mode_adds_its_own_error(known: Catalogue) -> None:
    def low(mode: str) -> float:
        return simulated(known, hypothesis(terms=replace(TERMS, mode=mode))).known["first_token_p50"].low

    assert low("coarse") == pytest.approx(low("fine") / (1 + FIRST_TOKEN_GAP), rel=0.3)
    assert low("coarse") < low("fine")


@pytest.mark.parametrize(
    ("machines", "terms", "mode"),
    [
        ("3xrtx-3060", TERMS, Mode.FINE),
        ("3xrtx-3060", replace(TERMS, duration_s=DAY_S, arrivals_per_s=None), Mode.COARSE),
        ("1000xrtx-3060", TERMS, Mode.COARSE),
        ("3xrtx-3060", replace(TERMS, mode="coarse"), Mode.COARSE),
    ],
)
def test_the_mode_follows_the_size_unless_it_is_named(
    known: Catalogue, machines: str, terms: Terms, mode: Mode
) -> None:
    found = scenario_of(hypothesis(machines=machines, terms=terms), known, default_assumptions(known))
    assert found.mode is mode


def test_cells_grow_until_they_hold_the_model(known: Catalogue) -> None:
    asked = hypothesis(machines="64xrtx-3060", model="qwen3-235b-a22b", quantisation="q8_0")
    found = scenario_of(asked, known, default_assumptions(known))
    assert found.serving.cell_machines == 32
    assert found.num_cells == 2


@pytest.mark.parametrize(
    ("terms", "part"),
    [
        (replace(TERMS, answer_tokens=500), "do not fit the context"),
        (replace(TERMS, cell_machines=4), "of 3 machines"),
        (replace(TERMS, spares=3), "leave none"),
    ],
)
def test_impossible_terms_are_named(known: Catalogue, terms: Terms, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        simulated(known, hypothesis(terms=terms))


def test_an_interruption_decides_nothing(known: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FineSimulation.run

    def interrupted(simulation: FineSimulation, told: Callable[[float, float], None]) -> object:
        def interrupt(done_s: float, total_s: float) -> None:
            raise KeyboardInterrupt

        return whole(simulation, interrupt)

    monkeypatch.setattr(FineSimulation, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulated(known, hypothesis())


def test_scaling_makes_every_time_longer_and_every_loss_more_frequent() -> None:
    base = scenario(churn=Churn(SHAKY))
    found = scaled(base, times=2.0, losses=4.0)
    before, after = base.cluster.members[0][0].speed, found.cluster.members[0][0].speed
    assert after.memory_bytes_per_s == before.memory_bytes_per_s / 2
    assert after.matrix_ops_per_s == before.matrix_ops_per_s / 2
    assert found.link.latency_s == 2 * base.link.latency_s
    assert found.link.software_s == 2 * base.link.software_s
    assert found.link.bytes_per_s == base.link.bytes_per_s / 2
    assert found.load_bytes_per_s == base.load_bytes_per_s / 2
    assert found.churn is not None
    assert found.churn.model.uptime == Exponential(10.0)


@pytest.mark.parametrize(
    "uptime", [Weibull(0.5, 100.0), LemonMixture(0.1, Exponential(500.0), Exponential(50.0))]
)
def test_scaling_keeps_the_shape_of_a_lifetime(uptime: Weibull | LemonMixture) -> None:
    model = replace(SHAKY, uptime=uptime, room_size=2, room_loss=Exponential(80.0))
    found = scaled(scenario(churn=Churn(model)), times=1.0, losses=4.0).churn
    assert found is not None
    assert found.model.uptime.survival(25.0) == pytest.approx(uptime.survival(100.0))
    assert found.model.room_loss == Exponential(20.0)
