"""The fine mode against what queueing theory and the cost model say, and what it promises of itself."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shoal.catalogue.failure import Exponential, FailureModel
from shoal.planner import cost_model
from shoal.simulator.fine import FineResult, FineSimulation
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.records import Outcome
from shoal.simulator.report import report_fine
from shoal.simulator.scenario import Churn
from shoal.simulator.virtual_head import PING_INTERVAL_S, PING_PATIENCE_S
from shoal.simulator.workload import Closed, Poisson, Workload
from tests.unit.planner.toys import LAYER
from tests.unit.simulator.toy_scenarios import HOP_S, LAYER_S, SERVING, scenario, shaky


def run(wanted: object, seed: int = 1) -> FineResult:
    return FineSimulation(wanted, seed).run()  # type: ignore[arg-type]


# ---------------------------------------------------------------- one server, one queue


def lindley_waits(arrivals: list[float], services: list[float]) -> list[float]:
    """Waits in a queue before one server, first come first served (Lindley 1952)."""
    free_s, waits = 0.0, []
    for at_s, service_s in zip(arrivals, services, strict=True):
        waits.append(max(0.0, free_s - at_s))
        free_s = max(at_s, free_s) + service_s
    return waits


def test_one_machine_with_equal_requests_is_the_queue_m_d_1() -> None:
    """Each request waits exactly as long as in the queue, whose mean is the formula's within 1 %."""
    load, service_s = 0.7, LAYER_S
    found = run(
        scenario(
            num_machines=1,
            num_layers=1,
            duration_s=8.0,
            workload=Workload(Poisson(load / service_s), Fixed(1), Fixed(1)),
        )
    )
    answered = [request for request in found.requests if request.outcome is Outcome.ANSWERED]
    arrivals = [request.at_s for request in answered]
    assert len(answered) > 400
    waits = [(request.first_token_s or 0.0) - service_s for request in answered]
    assert waits == pytest.approx(lindley_waits(arrivals, [service_s] * len(answered)), abs=1e-9)
    # Waits over many more arrivals: a random walk above its lowest point so far.
    walk = np.cumsum(service_s - np.random.default_rng(1).exponential(service_s / load, 4_000_000))
    mean_s = float((walk - np.minimum.accumulate(np.minimum(walk, 0.0))).mean())
    assert mean_s == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.01)


# ---------------------------------------------------------------- several servers, one queue


def shared_queue_waits(arrivals: list[float], services: list[float], servers: int) -> list[float]:
    """Waits before `servers` equal servers, first come first served (Kiefer and Wolfowitz 1955)."""
    free_s, waits = [0.0] * servers, []
    for at_s, service_s in zip(arrivals, services, strict=True):
        start_s = max(at_s, heapq.heappop(free_s))
        waits.append(start_s - at_s)
        heapq.heappush(free_s, start_s + service_s)
    return waits


def erlang_c_wait_s(arrival_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait in M/M/c (Erlang 1917)."""
    offered = arrival_per_s * service_s
    tail = offered**servers / math.factorial(servers) / (1 - offered / servers)
    waits = tail / (sum(offered**k / math.factorial(k) for k in range(servers)) + tail)
    return waits * service_s / (servers - offered)


def test_cells_of_one_stream_behind_one_gateway_are_the_queue_m_m_c() -> None:
    cells, mean_tokens, load = 3, 40, 0.75
    arrival_per_s = load * cells / (mean_tokens * LAYER_S)
    found = run(
        scenario(
            num_machines=cells,
            num_layers=1,
            duration_s=60.0,
            serving=replace(SERVING, cell_machines=1, streams=1, context_tokens=100_000),
            workload=Workload(Poisson(arrival_per_s), Fixed(1), Geometric(mean_tokens, 50_000)),
        )
    )
    answered = found.requests[:250]
    assert all(request.outcome is Outcome.ANSWERED for request in answered)
    waits = [(request.first_token_s or 0.0) - LAYER_S for request in answered]
    arrivals = [request.at_s for request in answered]
    services = [request.output_tokens * LAYER_S for request in answered]
    assert waits == pytest.approx(shared_queue_waits(arrivals, services, cells), abs=1e-9)
    assert max(waits) > 0
    rng = np.random.default_rng(2)
    many = np.cumsum(rng.exponential(1 / arrival_per_s, 600_000)).tolist()
    times = rng.exponential(mean_tokens * LAYER_S, len(many)).tolist()
    mean_s = float(np.mean(shared_queue_waits(many, times, cells)))
    assert mean_s == pytest.approx(erlang_c_wait_s(arrival_per_s, mean_tokens * LAYER_S, cells), rel=0.01)


def test_a_gateway_sends_each_request_to_the_emptiest_cell() -> None:
    serving = replace(SERVING, cell_machines=1, streams=2)
    workload = Workload(Closed(3), Fixed(1), Fixed(4000))
    found = run(scenario(num_machines=2, num_layers=1, duration_s=5.0, serving=serving, workload=workload))
    assert [request.cell for request in found.requests] == [0, 1, 0]


# ---------------------------------------------------------------- pipelines without failures

STAGES = [LAYER_S] * 4
HOPS = [HOP_S] * 5


@pytest.mark.parametrize("users", [1, 2, 4, 8])
def test_equal_stages_without_failures_reach_the_closed_form_within_one_percent(users: int) -> None:
    found = run(scenario(duration_s=20.0, workload=Workload(Closed(users), Fixed(1), Fixed(4000))))
    expected = cost_model.decode_tok_per_s(
        STAGES, HOPS, steps_in_flight=min(users, 4), tokens_per_step=max(1, users / 4)
    )
    report = report_fine(found, 1)
    assert report.tok_per_s == pytest.approx(expected, rel=0.01)
    assert report.token_s.mean == pytest.approx(users / expected, rel=0.01)


def test_a_prompt_alone_takes_the_closed_form_within_one_percent() -> None:
    found = run(scenario(workload=Workload(Poisson(0.2), Fixed(40), Fixed(1))))
    times = [request.first_token_s for request in found.requests if request.first_token_s is not None]
    assert len(times) > 5
    assert min(times) == pytest.approx(cost_model.prefill_s(STAGES, HOPS, 10), rel=0.01)


def test_stages_are_busy_as_long_as_their_work_takes() -> None:
    found = run(scenario(duration_s=20.0, workload=Workload(Closed(1), Fixed(1), Fixed(4000))))
    share = LAYER_S / cost_model.round_trip_s(STAGES, HOPS)
    assert found.stage_busy[0] == pytest.approx([share] * 4, rel=0.01)
    report = report_fine(found, 1)
    assert report.communication_share == pytest.approx(5 * HOP_S / (5 * HOP_S + 4 * LAYER_S), rel=0.01)


# ---------------------------------------------------------------- churn


@pytest.mark.parametrize("seed", range(2))
def test_every_request_ends_in_exactly_one_outcome_whatever_machines_do(seed: int) -> None:
    found = run(shaky(duration_s=90.0), seed)
    assert [request.number for request in found.requests] == list(range(len(found.requests)))
    assert len(found.machine_events) > 5
    for request in found.requests:
        complete = request.tokens == request.output_tokens
        assert complete == (request.outcome is Outcome.ANSWERED)
        assert (request.error is not None) == (request.outcome in (Outcome.LOST, Outcome.REFUSED))
        assert (request.end_s is None) == (request.outcome is Outcome.UNFINISHED)
    assert sum(report_fine(found, seed).outcomes.values()) == len(found.requests)


def test_machines_that_keep_leaving_cost_answers_and_stall_others() -> None:
    outcomes: Counter[Outcome] = Counter()
    stalls = 0
    for seed in range(2):
        found = run(shaky(duration_s=90.0), seed)
        outcomes += Counter(request.outcome for request in found.requests)
        stalls += len(found.stalls_s)
    assert outcomes[Outcome.ANSWERED] > outcomes[Outcome.LOST] > 0
    assert outcomes[Outcome.REFUSED] > 0
    assert stalls > 0


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    one, two, other = (run(shaky(duration_s=40.0), seed) for seed in (7, 7, 8))
    assert one.requests == two.requests
    assert one.machine_events == two.machine_events
    assert one.timeline == two.timeline
    assert one.requests != other.requests


def test_machine_seconds_are_those_between_coming_and_leaving() -> None:
    found = run(shaky(duration_s=90.0))
    away_s, since = 0.0, {}
    for event in found.machine_events:
        if event.cause == "returned":
            away_s += event.at_s - since.pop(event.machine)
        else:
            since[event.machine] = event.at_s
    away_s += sum(90.0 - at_s for at_s in since.values())
    assert found.machine_s == pytest.approx(6 * 90.0 - away_s)


def test_an_interruption_leaves_what_there_is() -> None:
    def interrupt(done_s: float, total_s: float) -> None:
        if done_s > 20.0:
            raise KeyboardInterrupt

    found = FineSimulation(scenario(), 1).run(interrupt)
    assert found.is_partial
    assert 20.0 < found.elapsed_s < 60.0
    assert all(request.at_s < found.elapsed_s for request in found.requests)


def test_users_of_a_cell_that_is_down_ask_again_later_and_time_goes_on() -> None:
    gone = FailureModel("gone", "gone", uptime=Exponential(5.0), repair=Exponential(1000.0))
    found = run(scenario(churn=Churn(gone), workload=Workload(Closed(3), Fixed(1), Fixed(5))))
    refused = sum(request.outcome is Outcome.REFUSED for request in found.requests)
    assert 10 < refused < 3 * 60 / 0.5


def test_a_stall_and_the_down_time_begin_when_the_machine_goes_not_when_that_is_noticed() -> None:
    once = FailureModel("once", "once", uptime=Exponential(60.0), repair=Exponential(1e6))
    wanted = scenario(
        num_machines=5,
        serving=replace(SERVING, cell_machines=5, spares=1),
        workload=Workload(Closed(2), Fixed(1), Fixed(4000)),
        churn=Churn(once),
        load_bytes_per_s=50.0,
        duration_s=30.0,
    )
    found = run(wanted, 3)
    assert len(found.machine_events) == len(found.stalls_s) == 1
    # Noticed by a ping that comes too long after the last one answered, then loaded elsewhere.
    least_s = PING_PATIENCE_S - PING_INTERVAL_S + LAYER.trunk_bytes / 50.0
    assert least_s < 30.0 * (1 - found.availability) < found.stalls_s[0] < least_s + 2 * PING_INTERVAL_S
    shortest_s = min(request.longest_gap_s or 0.0 for request in found.requests)
    assert found.stalls_s[0] == pytest.approx(shortest_s, abs=0.1)


def test_digests_take_as_long_as_counting() -> None:
    wanted = scenario(duration_s=10.0, workload=Workload(Poisson(2.0), Fixed(9), Fixed(20)))
    exact = replace(wanted, serving=replace(wanted.serving, is_exact=True))
    assert run(wanted).requests == run(exact).requests
