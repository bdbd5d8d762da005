"""The coarse mode: no request lost from the count, limits of queueing theory, its gap to the fine mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.catalogue.failure import Exponential, FailureModel
from shoal.planner import cost_model
from shoal.simulator.cell_plan import deal_machines
from shoal.simulator.coarse import CoarseResult, CoarseSimulation
from shoal.simulator.coarse_cells import CoarseCells
from shoal.simulator.coarse_churn import _joined
from shoal.simulator.coarse_error import FIRST_TOKEN_GAP, RARE_FACTOR, STALL_GAP, THROUGHPUT_GAP, TOKEN_GAP
from shoal.simulator.coarse_flows import BINS, CoarseFlows, spread_of_bins
from shoal.simulator.coarse_tables import kinds_of_cells
from shoal.simulator.failures import Absences
from shoal.simulator.fine import FineSimulation
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.records import Outcome
from shoal.simulator.report import Report, report_coarse, report_fine
from shoal.simulator.scenario import Churn, Mode, Scenario
from shoal.simulator.scenario_file import USUAL_NOTICE_S
from shoal.simulator.workload import Closed, Poisson, Trace, Workload
from tests.unit.simulator.toy_scenarios import HOP_S, LAYER_S, SERVING, scenario, shaky

OUTCOME_GAP = 0.05  # of all requests

CELLS = 4
LIGHT_FIRST_S = 0.13  # of a prompt in a cell that has nothing else to do
GONE = FailureModel("gone", "gone", uptime=Exponential(150.0), repair=Exponential(60.0))


def run(wanted: Scenario, seed: int = 1, step_s: float | None = None) -> CoarseResult:
    return CoarseSimulation(replace(wanted, mode=Mode.COARSE), seed, step_s=step_s).run()


def cells(*, per_s: float, churn: Churn | None = None, duration_s: float = 120.0) -> Scenario:
    """Four cells of four stages and two spare machines each."""
    return scenario(
        num_machines=6 * CELLS,
        duration_s=duration_s,
        serving=replace(SERVING, cell_machines=6, spares=2, survive=1, max_waiting=20, chunk_tokens=8),
        workload=Workload(Poisson(per_s), Fixed(64), Geometric(60, 500)),
        churn=churn,
        load_bytes_per_s=100.0,
        notice_s=USUAL_NOTICE_S,
    )


# ---------------------------------------------------------------- of itself


@pytest.mark.parametrize("seed", range(3))
def test_every_request_that_comes_has_exactly_one_outcome(seed: int) -> None:
    simulation = CoarseSimulation(cells(per_s=12.0, churn=Churn(GONE, polite_share=0.3)), seed)
    found = simulation.run()
    assert sum(found.outcomes.values()) == simulation._flows.arrived > 500
    assert found.outcomes[Outcome.ANSWERED] > 0
    assert found.machines_lost > 0
    assert all(count >= 0 for count in found.outcomes.values())


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    wanted = cells(per_s=8.0, churn=Churn(GONE), duration_s=40.0)
    one, two, other = (report_coarse(run(wanted, seed), 0) for seed in (5, 5, 6))
    assert one == two
    assert one != other


def test_closed_users_of_one_cell_reach_the_closed_form_within_one_percent() -> None:
    wanted = scenario(duration_s=300.0, workload=Workload(Closed(4), Fixed(1), Geometric(2000, 4000)))
    found = report_coarse(run(wanted, step_s=0.25), 1)
    expected = cost_model.decode_tok_per_s([LAYER_S] * 4, [HOP_S] * 5, steps_in_flight=4, tokens_per_step=1)
    assert found.tok_per_s == pytest.approx(expected, rel=0.01)
    assert found.token_s.mean == pytest.approx(4 / expected, rel=0.02)


def test_below_saturation_what_comes_is_answered_and_little_s_law_holds() -> None:
    """Mean requests in the system = rate * mean time in it."""
    wanted = cells(per_s=2.0, duration_s=2000.0)
    found = run(wanted)
    report = report_coarse(found, 1)
    assert report.requests_per_s == pytest.approx(2.0, rel=0.05)
    running = np.mean([point.requests_running + point.requests_waiting for point in found.timeline])
    time_s = report.first_token_s.mean + 59 * report.token_s.mean
    assert running == pytest.approx(report.requests_per_s * time_s, rel=0.15)


def test_an_interruption_leaves_what_there_is() -> None:
    def interrupt(done_s: float, total_s: float) -> None:
        if done_s > 30.0:
            raise KeyboardInterrupt

    simulation = CoarseSimulation(cells(per_s=2.0), 1)
    found = simulation.run(interrupt)
    assert found.is_partial
    assert 30.0 < found.elapsed_s < 60.0


@pytest.mark.parametrize(
    ("num_lost", "loads", "falls"), [(1, False, False), (4, True, False), (5, True, True)]
)
def test_a_standby_may_be_lost_together_with_its_stage(num_lost: int, loads: bool, falls: bool) -> None:
    """Eight machines with a slice each, four stages, a standby of each: one loss is covered; of half of
    all some stages must be loaded, in the place of others' standbys; with three machines there is none."""
    num_cells = 200
    wanted = scenario(num_machines=8, serving=replace(SERVING, cell_machines=8, spares=4, survive=1))
    wanted = replace(wanted, mode=Mode.COARSE)
    tables = [replace(table, slots=1) for table in kinds_of_cells(wanted, deal_machines(wanted))[0]]
    found = CoarseCells(
        tables,
        np.zeros(num_cells, np.int64),
        survive=1,
        notice_s=1.0,
        polite_share=0.0,
        rng=np.random.default_rng(1),
    )
    found.lose(np.arange(num_cells), np.full(num_cells, num_lost), 0.0)
    assert bool(found.is_down.all()) == falls
    assert bool(found.is_down.any()) == falls
    if not falls:
        has_loaded = found.ready_s >= 1.0 + tables[0].load_s
        assert bool(has_loaded.mean() > 0.3) == loads
        assert bool(has_loaded.any()) == loads


def test_machines_that_are_away_all_the_time_answer_nothing() -> None:
    never = FailureModel("never", "never", uptime=Exponential(0.01), repair=Exponential(1e9))
    found = run(cells(per_s=5.0, churn=Churn(never)))
    assert found.outcomes[Outcome.ANSWERED] == 0
    assert found.outcomes[Outcome.REFUSED] > 0


def test_a_machine_that_goes_alone_and_with_its_room_is_away_once() -> None:
    absences = Absences(
        machine=np.array([0, 1, 0, 0]),
        since_s=np.array([1.0, 2.0, 3.0, 9.0]),
        until_s=np.array([5.0, 4.0, 8.0, np.inf]),
        is_room=np.array([False, False, True, False]),
    )
    machine, since_s, until_s = _joined(absences)
    assert machine.tolist() == [0, 0, 1]
    assert since_s.tolist() == [1.0, 9.0, 2.0]
    assert until_s[[0, 2]].tolist() == [8.0, 4.0]
    assert until_s[1] > 1e6


def test_machine_seconds_are_those_of_the_share_that_is_there() -> None:
    even = FailureModel("even", "even", uptime=Exponential(10.0), repair=Exponential(10.0))
    found = run(cells(per_s=1.0, churn=Churn(even, all_present=False), duration_s=500.0))
    assert sum(found.machine_s_by_kind.values()) == pytest.approx(24 * 500.0 / 2, rel=0.1)


def test_bins_are_found_by_arithmetic_as_by_search() -> None:
    values = np.concatenate([np.random.default_rng(1).lognormal(0, 4, 1000), BINS[:3], [0.0, 1e9]])
    flows = CoarseFlows()
    flows.note_first(values, np.ones(len(values)))
    searched = np.bincount(np.searchsorted(BINS, np.maximum(values, BINS[0])), minlength=len(BINS) + 1)
    assert flows.first_s.tolist() == searched.tolist()
    assert spread_of_bins(flows.first_s).count == len(values)


# ---------------------------------------------------------------- against the fine mode


def both(wanted: Scenario) -> tuple[Report, Report]:
    """The same requests in both modes."""
    arrivals = tuple(wanted.workload.arrivals(wanted.duration_s, np.random.default_rng(9)))
    wanted = replace(wanted, workload=replace(wanted.workload, pattern=Trace(arrivals)))
    return report_fine(FineSimulation(wanted, 1).run(), 1), report_coarse(run(wanted), 1)


@pytest.mark.parametrize("per_s", [4.0, 12.0])
def test_without_churn_the_gap_to_the_fine_mode_is_as_stated(per_s: float) -> None:
    fine, coarse = both(cells(per_s=per_s, duration_s=25.0))
    assert coarse.tok_per_s == pytest.approx(fine.tok_per_s, rel=THROUGHPUT_GAP)
    assert coarse.token_s.mean == pytest.approx(fine.token_s.mean, rel=TOKEN_GAP)
    if per_s < 10:  # beyond, the draw of lengths decides how the queue grows
        assert coarse.first_token_s.p50 == pytest.approx(fine.first_token_s.p50, rel=FIRST_TOKEN_GAP)


def test_waits_in_a_full_queue_are_those_of_the_fine_mode() -> None:
    """A queue of 16 that is always full: nearly all of a wait, and it hardly depends on the draw."""
    wanted = cells(per_s=16.0, duration_s=25.0)
    fine, coarse = both(replace(wanted, serving=replace(wanted.serving, max_waiting=4)))
    assert fine.first_token_s.p50 > 10 * LIGHT_FIRST_S
    for share in ("mean", "p50", "p90"):
        found, expected = getattr(coarse.first_token_s, share), getattr(fine.first_token_s, share)
        assert found == pytest.approx(expected, rel=FIRST_TOKEN_GAP)


def test_with_churn_the_gap_to_the_fine_mode_is_as_stated() -> None:
    fine, coarse = both(cells(per_s=4.0, churn=Churn(GONE, polite_share=0.3), duration_s=60.0))
    assert coarse.tok_per_s == pytest.approx(fine.tok_per_s, rel=0.20)
    for outcome in ("answered", "lost", "refused"):
        gap = coarse.outcomes[outcome] - fine.outcomes[outcome]
        assert abs(gap) <= 2 * OUTCOME_GAP * fine.num_requests


@pytest.mark.parametrize("survive", [0, 1])
def test_the_modes_agree_on_how_long_cells_are_down_and_what_that_costs(survive: int) -> None:
    """survive=1: a lost stage that finds no room takes a standby's."""
    wanted = cells(per_s=1.0, churn=Churn(GONE), duration_s=200.0)
    wanted = replace(wanted, serving=replace(wanted.serving, survive=survive))
    fine, coarse = report_fine(FineSimulation(wanted, 4).run(), 4), report_coarse(run(wanted, 4), 4)
    assert 0.5 < fine.availability < 0.95
    assert 1 - coarse.availability == pytest.approx(1 - fine.availability, rel=0.25)
    assert (
        fine.outcomes["lost"] / RARE_FACTOR <= coarse.outcomes["lost"] <= fine.outcomes["lost"] * RARE_FACTOR
    )
    if survive:
        return  # too few stalls to compare
    assert fine.stalls_s.p50 / (1 + STALL_GAP) <= coarse.stalls_s.p50 <= fine.stalls_s.p50 * (1 + STALL_GAP)


def test_shaky_machines_stall_in_both_modes() -> None:
    fine, coarse = both(shaky(duration_s=90.0))
    assert fine.stalls_s.count > 0
    assert coarse.stalls_s.count > 0
