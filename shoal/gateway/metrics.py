"""GET /metrics: what the head knows, in Prometheus' text format.

Counters are kept by the driver's tracer and read here when somebody asks: the token path pays for
none of this. The time split is the one of `shoal trace`, added up over all requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.responses import Response

from shoal.core.request_times import HistogramView, RequestTotals
from shoal.core.status import ClusterStatus, LossStatus, WorkerStatus
from shoal.pipeline.interface import ClusterView


def metrics_routes(view: ClusterView) -> APIRouter:
    """GET /metrics, for whoever may reach the server."""
    router = APIRouter()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HeadMetrics(view))

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router


class HeadMetrics(Collector):
    """Asks the head anew for every scrape."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        status = self._view.status()
        yield from _of_requests(self._view.request_totals())
        yield from _of_cluster(status)
        yield from _of_workers(status.workers)
        yield from _of_journals(status)
        yield from _of_losses(status.losses)


def _of_requests(totals: RequestTotals) -> Iterator[Metric]:
    requests = CounterMetricFamily("shoal_requests", "Answers that have ended, by how.", labels=["outcome"])
    for outcome, count in totals.outcomes.items():
        requests.add_metric([outcome], count)
    yield requests
    yield CounterMetricFamily(
        "shoal_prompt_tokens", "Prompt tokens of the requests taken in.", value=totals.prompt_tokens
    )
    yield CounterMetricFamily("shoal_generated_tokens", "Tokens generated.", value=totals.generated_tokens)
    yield _histogram(
        "shoal_time_to_first_token_seconds",
        "From a request's being taken in to its first token.",
        totals.time_to_first_token,
    )
    yield _histogram("shoal_inter_token_seconds", "Between two tokens of one answer.", totals.inter_token)
    split = CounterMetricFamily(
        "shoal_request_time_seconds",
        "Where answers' time went; see `shoal trace`.",
        labels=["phase", "stage", "part"],
    )
    _add_split(split, "prefill", totals.prefill)
    _add_split(split, "decode", totals.decode)
    yield split


def _add_split(family: CounterMetricFamily, phase: str, seconds: Mapping[str, float]) -> None:
    for column, value in seconds.items():
        words = column.split(" ")
        stage, part = (words[1], words[2]) if words[0] == "stage" else ("", "_".join(words))
        family.add_metric([phase, stage, part], value)


def _histogram(name: str, text: str, view: HistogramView) -> Metric:
    ends = [*map(str, view.bounds), "+Inf"]
    buckets = list(zip(ends, map(float, accumulate(view.counts)), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=view.sum_s)


def _of_cluster(status: ClusterStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("shoal_ready", "1 while every layer has a live owner.", value=status.ready)
    yield GaugeMetricFamily("shoal_epoch", "Grows with every change of the route.", value=status.epoch)
    yield _by_state(
        "shoal_sessions",
        "Requests on the pipeline, and those waiting for room.",
        active=status.sessions_active,
        waiting=status.sessions_waiting,
    )
    yield _by_state(
        "shoal_cells",
        "Cache cells of the smallest stage: set aside, and in all.",
        reserved=status.cells_reserved,
        total=status.cells_total,
    )
    yield GaugeMetricFamily("shoal_steps_in_flight", "Steps on their way now.", value=status.steps_in_flight)


def _by_state(name: str, text: str, **values: int) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state, value in values.items():
        family.add_metric([state], value)
    return family


def _of_workers(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    labels = ["stage", "node", "worker", "role"]
    live = GaugeMetricFamily("shoal_worker_live", "1 unless the worker is lost.", labels=labels)
    slow = GaugeMetricFamily(
        "shoal_worker_slow",
        "1 where steps (why=steps) or pings (why=pings) take far too long.",
        labels=[*labels, "why"],
    )
    pings = GaugeMetricFamily("shoal_worker_ping_seconds", "The last ping's round trip.", labels=labels)
    steps = CounterMetricFamily("shoal_worker_steps", "Steps computed.", labels=labels)
    times = GaugeMetricFamily(
        "shoal_worker_step_seconds", "Median over a worker's last steps.", labels=[*labels, "part"]
    )
    tokens = CounterMetricFamily(
        "shoal_worker_tokens", "Computed for the first time, and again after a loss.", labels=[*labels, "why"]
    )
    busy = CounterMetricFamily("shoal_worker_compute_seconds", "Spent on them.", labels=[*labels, "why"])
    for worker in workers:
        values = [str(worker.stage), worker.node, worker.worker, worker.role]
        tokens.add_metric([*values, "new"], worker.computed_tokens - worker.pulled_tokens)
        tokens.add_metric([*values, "pulled"], worker.pulled_tokens)
        busy.add_metric([*values, "new"], worker.compute_s - worker.pull_s)
        busy.add_metric([*values, "pulled"], worker.pull_s)
        live.add_metric(values, worker.state != "lost")
        slow.add_metric([*values, "steps"], worker.state == "slow")
        slow.add_metric([*values, "pings"], worker.state == "delayed")
        if worker.ping_ms is not None:
            pings.add_metric(values, worker.ping_ms / 1000)
        steps.add_metric(values, worker.steps)
        for part, milliseconds in (("compute", worker.compute_ms), ("queue", worker.queue_ms)):
            if milliseconds is not None:
                times.add_metric([*values, part], milliseconds / 1000)
    yield from (live, slow, pings, steps, times, tokens, busy)


def _of_journals(status: ClusterStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "shoal_journal_limit_bytes",
        "What each worker may keep of what it has sent.",
        value=status.journal_limit_bytes,
    )
    labels = ["stage", "node", "worker", "role"]
    used = GaugeMetricFamily("shoal_worker_journal_bytes", "What journals take.", labels=labels)
    cut = GaugeMetricFamily(
        "shoal_worker_cut_journals",
        "Sessions whose journal has only its last rows, for want of room.",
        labels=labels,
    )
    cuts = CounterMetricFamily("shoal_worker_journal_cuts", "Journals cut for want of room.", labels=labels)
    pulls = CounterMetricFamily(
        "shoal_worker_long_pulls",
        "Sessions computed again because a journal that was asked for had been cut.",
        labels=labels,
    )
    for worker in status.workers:
        values = [str(worker.stage), worker.node, worker.worker, worker.role]
        used.add_metric(values, worker.journal_bytes)
        cut.add_metric(values, worker.cut_journals)
        cuts.add_metric(values, worker.journal_cuts)
        pulls.add_metric(values, worker.long_pulls)
    yield from (used, cut, cuts, pulls)


def _of_losses(losses: tuple[LossStatus, ...]) -> Iterator[Metric]:
    """Of the losses that the head remembers; it forgets old ones, so these are no counters."""
    count = GaugeMetricFamily(
        "shoal_remembered_losses", "Lost workers, by what took over (or what else).", labels=["end"]
    )
    for end, number in Counter(loss.rung or loss.end for loss in losses).items():
        count.add_metric([end], number)
    longest = GaugeMetricFamily("shoal_longest_stall_seconds", "Of remembered losses.", labels=["rung"])
    stalls: dict[str, float] = {}
    for loss in losses:
        if loss.rung is not None and loss.stall_s is not None:
            stalls[loss.rung] = max(loss.stall_s, stalls.get(loss.rung, 0.0))
    for rung, stall_s in stalls.items():
        longest.add_metric([rung], stall_s)
    yield from (count, longest)
