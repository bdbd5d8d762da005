"""A report as files: report.json, report.md, requests.csv, timeline.csv, trace.json and the plots.

The same run writes the same bytes. What a file cannot hold it leaves out and says so.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.core.units import digits_text, seconds_text
from shoal.simulator.fine import FineResult
from shoal.simulator.plots import Plot, draw_plots, is_plotting_possible
from shoal.simulator.records import RequestRecord, TimePoint
from shoal.simulator.report import Report
from shoal.simulator.spread import Spread
from shoal.simulator.trace_events import trace_of


def write_report(report: Report, timeline: Sequence[TimePoint], plots: Sequence[Plot], folder: Path) -> None:
    """Everything that both modes have. Raises ConfigError where the folder cannot be written."""
    _write(folder, "report.json", json.dumps(_plain(report), indent=2) + "\n")
    _write(folder, "report.md", report_text(report, has_plots=is_plotting_possible()))
    _write(folder, "timeline.csv", _csv(TimePoint, timeline))
    try:
        draw_plots(plots, folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_requests(result: FineResult, folder: Path) -> None:
    """What the fine mode has beside: every request, and the trace."""
    _write(folder, "requests.csv", _csv(RequestRecord, result.requests))
    _write(folder, "trace.json", json.dumps(trace_of(result), separators=(",", ":")) + "\n")


def _write(folder: Path, name: str, text: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The report cannot be written to {folder}: {error}.", next_step="Choose another --out."
    )


def _csv(kind: type, rows: Iterable[Any]) -> str:
    names = [field.name for field in dataclasses.fields(kind)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(getattr(row, name)) for name in names])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return getattr(value, "value", value)


def _plain(report: Report) -> dict[str, Any]:
    return dataclasses.asdict(report)


# ---------------------------------------------------------------- for people


def report_text(report: Report, *, has_plots: bool) -> str:
    """Markdown."""
    lines = [f"# {report.scenario}", ""]
    if report.is_partial:
        lines += [
            f"**Partial: interrupted after {seconds_text(report.elapsed_s)} of "
            f"{seconds_text(report.duration_s)}.**",
            "",
        ]
    lines += ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {figure} |" for name, figure in report_rows(report)]
    if has_plots:
        lines += ["", "![throughput](throughput.svg)", "![latency](latency.svg)", "![busy](busy.svg)"]
    return "\n".join(lines) + "\n"


def report_rows(report: Report) -> list[tuple[str, str]]:
    """Names and figures, as people read them."""
    ended = ", ".join(f"{count:,} {outcome}" for outcome, count in report.outcomes.items() if count)
    rows = [
        ("Simulated", f"{seconds_text(report.elapsed_s)}, {report.mode} mode, seed {report.seed}"),
        (
            "Machines",
            f"{report.num_machines:,} in {report.num_cells:,} cells of {report.stages_per_cell:.3g} stages; "
            f"{report.mean_present:,.1f} there on average",
        ),
        ("Requests", f"{report.num_requests:,}: {ended or 'none'}"),
        (
            "Throughput",
            f"{digits_text(report.tok_per_s)} tokens/s, {digits_text(report.requests_per_s)} requests/s",
        ),
        ("First token", _spread_text(report.first_token_s)),
        ("From token to token", _spread_text(report.token_s)),
        ("Longest wait inside an answer", _spread_text(report.longest_gap_s)),
        (
            "Machines lost",
            f"{report.machines_lost:,} ({digits_text(report.losses_per_machine_day)} a machine and day); "
            f"{report.stalls_s.count:,} stalls",
        ),
        ("Stalls", _spread_text(report.stalls_s)),
        ("A cell is whole", f"{report.availability:.4%} of the time"),
        ("Stages busy", f"{report.busy:.1%}; by stage {_shares(report.stage_busy)}"),
    ]
    if report.communication_share is not None:
        rows.append(("Communication", f"{report.communication_share:.1%} of a step's time on links"))
    rows.append(("Energy", f"{digits_text(report.cost.energy_kwh)} kWh at full power while there"))
    rows += [
        (f"{name}, USD per million tokens", _usd(figure))
        for name, figure in (
            ("Electricity", report.cost.electricity_usd_per_million),
            ("Hardware", report.cost.hardware_usd_per_million),
            ("Rent", report.cost.rent_usd_per_million),
        )
    ]
    return rows


def _shares(shares: Sequence[float], most: int = 16) -> str:
    shown = ", ".join(f"{share:.0%}" for share in shares[:most])
    return shown + (", ..." if len(shares) > most else "")


def _usd(figure: float | None) -> str:
    return "not known" if figure is None else digits_text(figure)


def _spread_text(found: Spread) -> str:
    if not found.count:
        return "none"
    show: Callable[[float], str] = seconds_text
    return (
        f"median {show(found.p50)}, 90 % {show(found.p90)}, 99 % {show(found.p99)}, mean {show(found.mean)} "
        f"(of {found.count:,})"
    )
