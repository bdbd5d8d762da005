"""Options and pieces of tables that the foresight commands share."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.catalogue.machine import LinkKind
from shoal.core.errors import ConfigError
from shoal.core.units import Dimension, parse
from shoal.planner.assumptions import Assumptions, default_assumptions
from shoal.planner.cluster import Cluster, slowest_link

MachinesOption = Annotated[
    list[str],
    typer.Option(
        "--machines",
        metavar="NxKIND",
        help="Machines, like 100000xPS3 or 2xRTX-5090,8xN100. May be given several times.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A model of the catalogue (kimi-k3, qwen3-30b-a3b, ...), a .gguf file, or a config.json.",
    ),
]
QuantOption = Annotated[
    str | None,
    typer.Option(
        "--quant", metavar="FORMAT", help="Weights as q4_0, q4_k_m, q8_0, f16, ... Default: as published."
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link", metavar="LINK", help="Network between machines. Default: what the machines come with."
    ),
]
ContextOption = Annotated[int, typer.Option("--context", min=1, help="Tokens that each stream holds.")]
PromptOption = Annotated[int, typer.Option("--prompt", min=1, help="Tokens of a new request.")]
StreamsOption = Annotated[int, typer.Option("--streams", min=1, help="Streams at the same time.")]
CatalogueOption = Annotated[
    list[Path],
    typer.Option(
        "--catalogue", metavar="FILE", help="A TOML file with machines, links or models of your own."
    ),
]
ElectricityOption = Annotated[
    float | None, typer.Option("--usd-per-kwh", min=0.0, help="Price of electricity in US dollars a kWh.")
]
UsedOption = Annotated[
    str,
    typer.Option(
        "--used", metavar="SHARE", help="Share of the hours that machines are on, with work for them."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, in base units, for scripts.")
]


def open_catalogue(extra: list[Path]) -> Catalogue:
    return load_catalogue(extra)


def choose_link(name: str | None, cluster: Cluster, catalogue: Catalogue) -> LinkKind:
    """The named link, or the slowest that the machines come with."""
    return slowest_link(cluster, catalogue) if name is None else catalogue.link(name)


def make_assumptions(
    catalogue: Catalogue, *, context: int, prompt: int, streams: int, used: str, usd_per_kwh: float | None
) -> Assumptions:
    given = default_assumptions(catalogue)
    return dataclasses.replace(
        given,
        context_tokens=context,
        prompt_tokens=prompt,
        streams=streams,
        used_share=share_of(used, "--used"),
        usd_per_kwh=given.usd_per_kwh if usd_per_kwh is None else usd_per_kwh,
    )


def share_of(text: str, option: str) -> float:
    """A share above 0 and up to 1, written like "30 %"."""
    share = parse(text, Dimension.SHARE, what=f"value of {option}")
    if not 0 < share <= 1:
        raise ConfigError(f"{option} {text} must lie above 0 % and up to 100 %.")
    return share


def check_machines(machines: list[str]) -> list[str]:
    if not machines:
        raise ConfigError(
            "No machines are named.", next_step="Write --machines 8xN100 or --machines 100000xPS3."
        )
    return machines


def console() -> Console:
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """A dataclass, in base units; an enumeration's value stands for it."""
    typer.echo(json.dumps(dataclasses.asdict(value), default=_plain, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def section(title: str, *columns: str) -> Table:
    """A titled table: the first column names, the others hold figures."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold cyan",
        box=box.SIMPLE_HEAD if columns else None,
        show_header=bool(columns),
        header_style="bold",
        pad_edge=False,
    )
    table.add_column(columns[0] if columns else "", style="bold" if not columns else None)
    for column in columns[1:] or ("",):
        table.add_column(column, justify="right" if columns else "left")
    if not columns:
        table.add_column("", style="dim")
    return table


def fact(table: Table, name: str, figure: str, comment: str = "") -> None:
    """A row of a section without columns. Texts are shown as they are, without markup."""
    table.add_row(name, Text(figure, style="green"), Text(comment, style="dim"))


def remarks_block(remarks: tuple[str, ...], unverified: tuple[str, ...]) -> list[Text]:
    lines = [Text.assemble(("! ", "bold yellow"), remark) for remark in remarks]
    if unverified:
        lines.append(
            Text("Not verified in the catalogue: " + "; ".join(unverified) + ".", style="dim italic")
        )
    return lines
