"""Findings of an assessment: verdicts by margin, and numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.catalogue.failure import Exponential, FailureModel
from shoal.catalogue.machine import MachineKind
from shoal.planner.assess import Assessment, assess
from shoal.planner.case import Asked
from shoal.planner.finding import Finding, Verdict, verdict_of
from shoal.planner.reference_server import Reference
from tests.unit.planner.toys import ASSUMED, LAYER, WIRE, cluster, machine, model

TEN = model(*[LAYER] * 10)
STEADY = FailureModel("steady", "steady", Exponential(1e6), Exponential(1e3))
SERVER = Reference("gpu", 1, "wire", 10.0, 0.036, 1.0, is_unverified=False)


def assessed(
    kind: MachineKind,
    count: int,
    *,
    asked: Asked | None = None,
    failures: FailureModel = STEADY,
    reference: Reference | None = SERVER,
) -> Assessment:
    wanted = asked or Asked(token_s=100.0)
    return assess(cluster((kind, count)), TEN, WIRE, ASSUMED, wanted, failures, reference)


def finding(found: Assessment, question: str) -> Finding:
    return next(entry for entry in (*found.questions, *found.checks) if entry.question.startswith(question))


def value(found: Finding, name: str) -> float | None:
    return next(figure.value for figure in found.figures if figure.name == name)


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [
        (None, Verdict.UNKNOWN),
        (2.0, Verdict.YES),
        (1.25, Verdict.YES),
        (1.2, Verdict.CLOSE),
        (0.81, Verdict.CLOSE),
        (0.79, Verdict.NO),
    ],
)
def test_a_margin_within_a_quarter_is_too_close_to_call(margin: float | None, verdict: Verdict) -> None:
    assert verdict_of(margin) is verdict


def test_every_finding_has_numbers_a_formula_and_a_turning_point() -> None:
    found = assessed(machine(memory=600), 2)
    assert len(found.questions) == 4
    assert len(found.checks) == 6
    for entry in (*found.questions, *found.checks):
        assert entry.figures
        assert entry.formula
        assert entry.turn
        assert entry.answer


def test_a_roomy_cluster_fits_and_says_when_it_would_not() -> None:
    fits = finding(assessed(machine(memory=2000), 2), "Does it fit")
    assert fits.verdict is Verdict.YES
    assert fits.margin == 4.0
    assert value(fits, "need_bytes") == 1000


def test_a_cluster_that_is_too_small_is_assessed_all_the_same() -> None:
    found = assessed(machine(memory=300), 2)
    assert not found.fits
    fits = finding(found, "Does it fit")
    assert fits.verdict is Verdict.NO
    assert fits.margin == pytest.approx(0.6)
    assert "about 5 x box" in fits.turn
    assert finding(found, "Weights and caches").verdict is Verdict.NO


def test_layers_that_fit_no_machine_leave_the_question_open() -> None:
    found = assessed(machine(memory=170), 100)
    assert finding(found, "Does it fit").verdict is Verdict.YES
    small = assess(
        cluster((machine(memory=99), 100)), TEN, WIRE, replace(ASSUMED, chunk_tokens=1), Asked(), STEADY, None
    )
    fits = finding(small, "Does it fit")
    assert fits.verdict is Verdict.CLOSE
    assert "smaller than a layer" in fits.answer


@pytest.mark.parametrize(
    ("asked_s", "verdict"), [(100.0, Verdict.YES), (13.0, Verdict.CLOSE), (5.0, Verdict.NO)]
)
def test_latency_is_the_chain_against_what_is_asked(asked_s: float, verdict: Verdict) -> None:
    latency = finding(assessed(machine(memory=600), 2, asked=Asked(token_s=asked_s)), "What latency")
    assert latency.verdict is verdict
    assert latency.margin == pytest.approx(asked_s / (10.0 + 3.0 + 2 / 1000))


def test_reading_needs_one_machines_bandwidth_after_the_other() -> None:
    needs = finding(assessed(machine(memory=600), 2, asked=Asked(token_s=20.0)), "What does a token need")
    assert needs.margin == pytest.approx(20.0 / 10.0)
    assert value(needs, "read_bytes") == 1000


def test_losses_are_counted_against_what_is_accepted() -> None:
    upkeep = finding(assessed(machine(memory=600), 2, asked=Asked(losses_per_day=0.1)), "What upkeep")
    assert value(upkeep, "losses_per_day") == pytest.approx(2 * 86_400 / 1e6)
    assert upkeep.verdict is Verdict.NO


def test_hops_may_take_half_of_the_asked_time() -> None:
    chain = finding(assessed(machine(memory=600), 2, asked=Asked(token_s=12.0)), "Length of the serial chain")
    assert chain.margin == pytest.approx(6.0 / (3.0 + 2 / 1000))


def test_one_machine_alone_has_no_chain_and_needs_no_link() -> None:
    found = assessed(machine(memory=2000), 1)
    assert finding(found, "Length of the serial chain").verdict is Verdict.YES
    assert finding(found, "Bandwidth between").verdict is Verdict.YES


def test_an_outage_is_notice_refill_and_replay() -> None:
    recovery = finding(assessed(machine(memory=600), 2), "Checkpoint")
    assert value(recovery, "notice_s") == 2.0
    assert value(recovery, "refill_s") == pytest.approx(0.5)
    assert value(recovery, "losses_per_day") == pytest.approx(2 * 86_400 / 1e6)
    up, warm = value(recovery, "up_share"), value(recovery, "warm_up_share")
    assert up is not None
    assert warm is not None
    # Noticed after 2 s, fetched in 0.5 s, ten tokens computed again in three chunks.
    replay = value(recovery, "replay_s")
    assert replay is not None
    outage = 2.0 + 0.5 + replay
    assert up == pytest.approx(1 / (1 + 2e-6 * outage))
    assert warm == pytest.approx(1 / (1 + 2e-6 * (outage - 0.5)))
    assert recovery.margin == pytest.approx(0.01 / (1 - up))


def test_cost_is_compared_with_the_server_or_left_unknown() -> None:
    cost = finding(assessed(machine(memory=600), 2), "Cost")
    electricity, hardware = value(cost, "electricity_usd"), value(cost, "hardware_usd")
    assert electricity is not None
    assert hardware is not None
    assert cost.margin == pytest.approx(1.0 / (electricity + hardware))
    alone = finding(assessed(machine(memory=600), 2, reference=None), "Cost")
    assert alone.verdict is Verdict.UNKNOWN
