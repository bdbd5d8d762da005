"""GET /metrics, read back by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.gateway.running_gateway import RunningGateway

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(gateway: RunningGateway) -> Samples:
    reply = httpx.get(f"{gateway.url}/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_requests_and_tokens_are_counted(gateway: RunningGateway) -> None:
    samples = scrape(gateway)
    assert value(samples, "shoal_requests_total", outcome="stop") == 3
    assert value(samples, "shoal_requests_total", outcome="overloaded") == 1
    assert value(samples, "shoal_generated_tokens_total") == 50


def test_histograms_are_cumulative_and_end_with_everything(gateway: RunningGateway) -> None:
    samples = scrape(gateway)
    name = "shoal_time_to_first_token_seconds"
    assert value(samples, f"{name}_bucket", le="0.5") == 2
    assert value(samples, f"{name}_bucket", le="1.0") == 2
    assert value(samples, f"{name}_bucket", le="+Inf") == value(samples, f"{name}_count") == 3
    assert value(samples, f"{name}_sum") == 2.5


def test_time_is_split_by_phase_part_and_stage(gateway: RunningGateway) -> None:
    samples = scrape(gateway)
    name = "shoal_request_time_seconds_total"
    assert value(samples, name, phase="prefill", stage="", part="wire") == 0.25
    assert value(samples, name, phase="decode", stage="1", part="compute") == 4.0
    assert value(samples, name, phase="decode", stage="", part="driver_queue") == 0.5


def test_the_cluster_is_shown_as_the_status_has_it(gateway: RunningGateway) -> None:
    samples = scrape(gateway)
    assert value(samples, "shoal_sessions", state="active") == 2
    assert value(samples, "shoal_cells", state="total") == 4000
    worker = {"stage": "0", "node": "node-1", "worker": "w-1", "role": "stage"}
    assert value(samples, "shoal_worker_steps_total", **worker) == 9
    assert value(samples, "shoal_worker_step_seconds", **worker, part="compute") == 0.00325


def test_journals_are_shown_with_what_a_full_one_has_led_to(gateway: RunningGateway) -> None:
    status = gateway.view.current
    full = replace(status.workers[0], journal_bytes=900, cut_journals=2, journal_cuts=7, long_pulls=1)
    gateway.view.current = replace(status, workers=(full, status.workers[1]), journal_limit_bytes=1000)
    samples = scrape(gateway)
    worker = {"stage": "0", "node": "node-1", "worker": "w-1", "role": "stage"}
    assert value(samples, "shoal_journal_limit_bytes") == 1000
    assert value(samples, "shoal_worker_journal_bytes", **worker) == 900
    assert value(samples, "shoal_worker_cut_journals", **worker) == 2
    assert value(samples, "shoal_worker_journal_cuts_total", **worker) == 7
    assert value(samples, "shoal_worker_long_pulls_total", **worker) == 1


@pytest.mark.parametrize(("state", "why"), [("slow", "steps"), ("delayed", "pings"), ("live", None)])
def test_a_worker_that_is_slow_is_flagged_with_the_reason(
    gateway: RunningGateway, state: str, why: str | None
) -> None:
    status = gateway.view.current
    worker = replace(status.workers[0], state=state)
    gateway.view.current = replace(status, workers=(worker, status.workers[1]))
    samples = scrape(gateway)
    labels = {"stage": "0", "node": "node-1", "worker": "w-1", "role": "stage"}
    flagged = [w for w in ("steps", "pings") if value(samples, "shoal_worker_slow", **labels, why=w)]
    assert flagged == ([] if why is None else [why])
    assert value(samples, "shoal_worker_live", **labels) == 1
    assert value(samples, "shoal_worker_ping_seconds", **labels) == 0.0007


def test_what_was_computed_again_is_told_apart(gateway: RunningGateway) -> None:
    status = gateway.view.current
    pulled = replace(status.workers[0], computed_tokens=100, compute_s=5.0, pulled_tokens=40, pull_s=1.5)
    gateway.view.current = replace(status, workers=(pulled, status.workers[1]))
    samples = scrape(gateway)
    worker = {"stage": "0", "node": "node-1", "worker": "w-1", "role": "stage"}
    assert value(samples, "shoal_worker_tokens_total", **worker, why="new") == 60
    assert value(samples, "shoal_worker_tokens_total", **worker, why="pulled") == 40
    assert value(samples, "shoal_worker_compute_seconds_total", **worker, why="new") == 3.5


def test_losses_are_shown_by_what_took_over(gateway: RunningGateway) -> None:
    loss = gateway.view.current.losses[0]
    stuck = replace(loss, rung=None, stall_s=None, end="open")
    gateway.view.current = replace(gateway.view.current, losses=(loss, replace(loss, stall_s=2.5), stuck))
    samples = scrape(gateway)
    assert value(samples, "shoal_remembered_losses", end="warm standby") == 2
    assert value(samples, "shoal_remembered_losses", end="open") == 1
    assert value(samples, "shoal_longest_stall_seconds", rung="warm standby") == 2.5
