"""Which plots a run has: throughput over time, latencies, how busy the stages are."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.units import MINUTE_S
from shoal.simulator.plots import Line, Plot
from shoal.simulator.records import RequestRecord, TimePoint
from shoal.simulator.report import Report


def plots_of(report: Report, timeline: Sequence[TimePoint], requests: Sequence[RequestRecord]) -> list[Plot]:
    """requests: empty in the coarse mode, which does not follow single ones."""
    return [_throughput(timeline), _latency(report, requests), _busy(report)]


def _throughput(timeline: Sequence[TimePoint]) -> Plot:
    minutes = [point.at_s / MINUTE_S for point in timeline]
    starts = [0.0, *(point.at_s for point in timeline)]
    rates = [
        point.tokens / max(point.at_s - before, 1e-9) for point, before in zip(timeline, starts, strict=False)
    ]
    there = [float(point.machines_present) for point in timeline]
    ready = [float(point.cells_ready) for point in timeline]
    return Plot(
        "throughput",
        "Tokens a second, machines that are there, cells that answer",
        "minutes",
        "tokens a second, machines, cells",
        (
            Line("tokens a second", minutes, rates),
            Line("machines", minutes, there, "steps"),
            Line("cells ready", minutes, ready, "steps"),
        ),
    )


def _latency(report: Report, requests: Sequence[RequestRecord]) -> Plot:
    if requests:
        lines = [
            _cumulative("first token", [r.first_token_s for r in requests if r.first_token_s is not None]),
            _cumulative("token to token", [r.token_s for r in requests if r.token_s is not None]),
            _cumulative("longest wait", [r.longest_gap_s for r in requests if r.longest_gap_s is not None]),
        ]
    else:
        lines = [
            Line(name, (found.p50, found.p90, found.p99), (0.5, 0.9, 0.99))
            for name, found in (("first token", report.first_token_s), ("token to token", report.token_s))
        ]
    return Plot("latency", "Share of requests below", "seconds", "share", lines, is_x_log=True)


def _cumulative(name: str, values: Sequence[float]) -> Line:
    ordered = sorted(max(value, 1e-4) for value in values)
    shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
    return Line(name, ordered, shares, "steps")


def _busy(report: Report) -> Plot:
    stages = [float(stage) for stage in range(len(report.stage_busy))]
    line = Line("busy", stages, [100 * share for share in report.stage_busy], "bars")
    return Plot("busy", "How busy each stage is", "stage", "% of the time", (line,))
