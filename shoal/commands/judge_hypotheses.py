"""`shoal test-hypothesis`: is what somebody says about machines and a model true, false or undecided?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from shoal.catalogue.loader import Catalogue
from shoal.commands.chat import key_from
from shoal.commands.foresight import CatalogueOption, JsonOption, console, open_catalogue, print_json, section
from shoal.commands.live_measurement import LiveMeasurement
from shoal.commands.progress import share_progress
from shoal.core.errors import ConfigError
from shoal.core.names import find
from shoal.core.units import Dimension, digits_text, power_text, seconds_text, usd_text
from shoal.gateway.client import endpoint_at
from shoal.planner.assumptions import default_assumptions
from shoal.planner.hypothesis import MEASURES, ClaimResult, Hypothesis, Judgement, Method, Truth, judge
from shoal.planner.hypothesis_estimate import EstimateMethod
from shoal.planner.hypothesis_file import read_hypotheses
from shoal.simulator.hypothesis_simulation import SimulationMethod

EXIT_FALSE = 1
EXIT_UNDECIDED = 3

STYLES = {Truth.TRUE: "green", Truth.FALSE: "red", Truth.UNDECIDED: "yellow"}


def judge_hypotheses(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A hypothesis.toml.")],
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="METHOD", help="estimate, simulation or measurement. Default: as in the file."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The running server, for measurements.")
    ] = None,
    catalogue: CatalogueOption = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Judge every hypothesis of a file, with its margin.

    Ends with status 0 if all are true, 1 if one is false, 3 if one is undecided and none false.
    """
    known = open_catalogue(catalogue)
    methods = _methods(known, base_url)
    found = []
    for hypothesis in read_hypotheses(file):
        try:
            found.append(_judged(hypothesis, by, methods))
        except ConfigError as error:
            where = f"hypothesis.{hypothesis.name} in {file}"
            raise ConfigError(f"{where}: {error.message}", next_step=error.next_step) from error
    if as_json:
        for judgement in found:
            print_json(judgement)
    else:
        screen = console()
        for judgement in found:
            screen.print(_table(judgement))
    truths = {judgement.truth for judgement in found}
    if Truth.FALSE in truths:
        raise typer.Exit(EXIT_FALSE)
    if Truth.UNDECIDED in truths:
        raise typer.Exit(EXIT_UNDECIDED)


def _methods(catalogue: Catalogue, base_url: str | None) -> Mapping[str, Method]:
    given = default_assumptions(catalogue)
    methods: dict[str, Method] = {
        "estimate": EstimateMethod(catalogue, given),
        "simulation": SimulationMethod(catalogue, given, share_progress),
    }
    if base_url is not None:
        methods["measurement"] = LiveMeasurement(endpoint_at(base_url, key=key_from(os.environ, base_url)))
    return methods


def _judged(hypothesis: Hypothesis, by: str | None, methods: Mapping[str, Method]) -> Judgement:
    wanted = by or hypothesis.by
    if wanted == "measurement" and wanted not in methods:
        raise ConfigError(
            "It is to be judged by measurement, and there is no server to measure.",
            next_step="Give --url, or judge it with --by estimate.",
        )
    return judge(hypothesis, find(wanted, methods, kind="method").figures(hypothesis))


def _between(claim: ClaimResult) -> str:
    if claim.low == claim.high:
        return "-"
    return f"{_figure_text(claim, claim.low)} and {_figure_text(claim, claim.high)}"


def _figure_text(claim: ClaimResult, figure: float | None) -> str:
    if figure is None or claim.measure is None:
        return "-"
    match MEASURES[claim.measure].dimension:
        case Dimension.SECONDS:
            return seconds_text(figure)
        case Dimension.USD:
            return usd_text(figure)
        case Dimension.WATTS:
            return power_text(figure)
        case Dimension.SHARE:
            return f"{100 * figure:.4g} %"
        case Dimension.TOKENS_PER_S:
            return f"{digits_text(figure)} tok/s"
        case _:
            return digits_text(figure)


def _table(judgement: Judgement) -> Table:
    table = section(judgement.says, "claim", "verdict", "by", "figure", "between", "margin", "because")
    table.columns[-1].justify = "left"
    for claim in judgement.claims:
        table.add_row(
            Text(claim.text),
            Text(claim.truth.value, style=STYLES[claim.truth]),
            claim.by or "-",
            _figure_text(claim, claim.value),
            _between(claim),
            "-" if claim.margin is None else f"{digits_text(claim.margin)} x",
            Text(claim.reason, style="dim"),
        )
    table.caption = Text.assemble(
        (judgement.truth.value.upper(), f"bold {STYLES[judgement.truth]}"), f" by {judgement.method}"
    )
    table.caption_justify = "left"
    return table
