"""`shoal catalogue`: the names that estimates know, and where their figures come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shoal.catalogue.failure import FailureModel
from shoal.catalogue.loader import Catalogue
from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.catalogue.model_anatomy import ModelAnatomy, Quantisation
from shoal.catalogue.provenance import Provenance
from shoal.commands.foresight import CatalogueOption, console, open_catalogue, section
from shoal.core.names import find
from shoal.core.units import (
    bytes_text,
    count_text,
    ops_text,
    power_text,
    rate_text,
    seconds_text,
    traffic_text,
)
from shoal.planner.demand import demand_of

Entry = FailureModel | LinkKind | Quantisation | ModelAnatomy | MachineKind


def catalogue_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A machine, model, link or failure model. Default: all."),
    ] = None,
    catalogue: CatalogueOption = [],  # noqa: B006 - typer copies it
) -> None:
    """List machines, models, links and failure models, or one of them with the sources of its figures."""
    known = open_catalogue(catalogue)
    screen = console()
    if name is not None:
        screen.print(_entry(known, name))
        return
    for block in _lists(known):
        screen.print(block)


def _lists(known: Catalogue) -> Iterator[RenderableType]:
    table = section("Machines", "name", "memory", "bandwidth", "compute", "power")
    for kind in known.machines.values():
        table.add_row(
            kind.name,
            bytes_text(kind.memory_bytes),
            rate_text(kind.memory_bytes_per_s),
            ops_text(kind.usable_ops_per_s),
            power_text(kind.power_w),
        )
    yield table
    table = section("Models", "name", "parameters", "a token uses", "at 4.5 bits", "cache a token")
    for anatomy in known.models.values():
        demand = demand_of(anatomy, known.quantisation("q4_0"))
        table.add_row(
            anatomy.name,
            count_text(demand.parameters),
            count_text(demand.active_parameters),
            traffic_text(demand.weight_bytes),
            traffic_text(demand.kv_bytes_per_token),
        )
    yield table
    table = section("Links", "name", "latency", "software", "rate")
    for link in known.links.values():
        table.add_row(
            link.name,
            seconds_text(link.latency_s),
            seconds_text(link.software_s),
            rate_text(link.bytes_per_s),
        )
    yield table
    table = section("Failure models", "name", "mean uptime", "there")
    for failure in known.failures.values():
        table.add_row(
            failure.name, seconds_text(failure.uptime.mean_s), f"{100 * failure.availability:.3g} %"
        )
    yield table
    yield Text("Quantisations: " + ", ".join(known.quantisations))


def _entry(known: Catalogue, name: str) -> Table:
    entries: dict[str, Entry] = {
        **known.failures,
        **known.links,
        **known.quantisations,
        **known.models,
        **known.machines,
    }
    entry = find(name, entries, kind="entry")
    table = section(entry.title, "value", "source", "note")
    for column in table.columns[1:]:
        column.justify = "left"
    for field, origin in entry.provenance.items():
        table.add_row(field, _source_text(origin, known), Text(origin.note or "", style="dim"))
    return table


def _source_text(origin: Provenance, known: Catalogue) -> Text:
    parts = [known.sources.get(part.strip(), part.strip()) for part in (origin.source or "").split("+")]
    text = Text("; ".join(filter(None, parts)))
    if origin.is_unverified:
        text.append(" (not verified)" if origin.source else "not verified", style="yellow")
    return text
