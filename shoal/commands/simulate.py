"""`shoal simulate`: run a scenario in virtual time and write down what happened."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from shoal.commands.foresight import CatalogueOption, JsonOption, console, open_catalogue, print_json, section
from shoal.commands.progress import share_progress
from shoal.simulator.coarse import CoarseSimulation
from shoal.simulator.fine import FineSimulation
from shoal.simulator.plots import is_plotting_possible
from shoal.simulator.report import Report, report_coarse, report_fine
from shoal.simulator.report_files import report_rows, write_report, write_requests
from shoal.simulator.run_plots import plots_of
from shoal.simulator.scenario import Mode, Scenario
from shoal.simulator.scenario_file import read_scenario

TRACE_BATCHES = 50_000  # about 15 MB of JSON; viewers take longer with more
EXIT_INTERRUPTED = 130


def simulate(
    scenario: Annotated[Path, typer.Argument(help="A scenario file; docs/SIMULATE.md says what is in it.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the report. None is written without it.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same bytes.")] = 1,
    catalogue: CatalogueOption = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Run a cluster that does not exist: requests come, machines leave, and the policy that serves for
    real decides what happens.

    Ctrl-C ends it early and reports what there is.

    \b
    shoal simulate examples/six-boxes.toml
    shoal simulate examples/net-cafe.toml --out report --seed 7
    """
    wanted = read_scenario(scenario, open_catalogue(catalogue))
    report = _run(wanted, seed, out)
    if as_json:
        print_json(report)
    else:
        _show(report, out)
    if report.is_partial:
        raise typer.Exit(EXIT_INTERRUPTED)


def _run(scenario: Scenario, seed: int, out: Path | None) -> Report:
    if scenario.mode is Mode.COARSE:
        return _run_coarse(scenario, seed, out)
    simulation = FineSimulation(scenario, seed, keep_batches=TRACE_BATCHES if out else 0)
    with share_progress(scenario.name) as progress, _interruptible(simulation.stop):
        result = simulation.run(progress)
    report = report_fine(result, seed)
    if out is not None:
        write_report(report, result.timeline, plots_of(report, result.timeline, result.requests), out)
        write_requests(result, out)
    return report


def _run_coarse(scenario: Scenario, seed: int, out: Path | None) -> Report:
    simulation = CoarseSimulation(scenario, seed)
    with share_progress(scenario.name) as progress, _interruptible(simulation.stop):
        result = simulation.run(progress)
    report = report_coarse(result, seed)
    if out is not None:
        write_report(report, result.timeline, plots_of(report, result.timeline, ()), out)
    return report


@contextmanager
def _interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and a polite kill end a run with a report."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop()

    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _show(report: Report, out: Path | None) -> None:
    table = section(report.scenario)
    for name, figure in report_rows(report):
        table.add_row(name, Text(figure, style="green"))
    screen = console()
    screen.print(table)
    if report.is_partial:
        screen.print(Text("Interrupted: these are the figures so far.", style="bold yellow"))
    if out is not None:
        trace = "" if report.mode == Mode.COARSE.value else "; trace.json opens in ui.perfetto.dev"
        screen.print(Text(f"Written to {out}{trace}.", style="dim"))
        if not is_plotting_possible():
            hint = "No plots: matplotlib is not installed (pip install 'shoal[studies]')."
            screen.print(Text(hint, style="yellow"))
