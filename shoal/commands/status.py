"""`shoal status`: the placement as the head sees it, as tables or as JSON."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.status import ClusterStatus, WorkerStatus
from shoal.gateway.client import DEFAULT_URL, ApiClient, ClientError, endpoint_at

_QUIET_S = 5.0


def status(
    as_json: Annotated[bool, typer.Option("--json", help="The raw status, for programs.")] = False,
    base_url: Annotated[str, typer.Option(envvar="SHOAL_URL", help="Where Shoal listens.")] = DEFAULT_URL,
) -> None:
    """Show nodes, workers with pid and slice, epoch, sessions and milliseconds per stage."""
    output, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        with ApiClient(endpoint_at(base_url, quiet_s=_QUIET_S)) as client:
            found = client.cluster_status()
        if as_json:
            output.out(json.dumps(found, indent=2))
        else:
            output.print(status_page(_checked(found)))
    except ShoalError as error:
        notes.out(str(error))
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def status_page(found: ClusterStatus) -> RenderableType:
    """The whole status as one renderable."""
    return Group(_summary(found), _workers_table(found.workers))


def _checked(found: dict[str, object]) -> ClusterStatus:
    try:
        return msgspec.convert(found, ClusterStatus)
    except msgspec.ValidationError as error:
        raise ClientError(
            f"The server's status is of another version ({error}).",
            next_step="Use the same Shoal version on both, or --json.",
        ) from None


def _summary(found: ClusterStatus) -> Text:
    state = "ready" if found.ready else f"not ready{_missing(found)}"
    return Text(
        f"{found.model}: {state}, up {_duration(found.uptime_s)}, epoch {found.epoch}, {found.mode} mode\n"
        f"Sessions: {found.sessions_active} active, {found.sessions_waiting} waiting. "
        f"Cells: {found.cells_reserved} of {found.cells_total} reserved, context {found.n_ctx}. "
        f"Steps in flight: {found.steps_in_flight}."
    )


def _missing(found: ClusterStatus) -> str:
    if not found.missing_layers:
        return ""
    ranges = ", ".join(f"[{start}, {end})" for start, end in found.missing_layers)
    return f" (layers {ranges} have no live owner)"


def _workers_table(workers: tuple[WorkerStatus, ...]) -> Table:
    table = Table("stage", "layers", "node", "worker", box=None, pad_edge=False, header_style="bold")
    for name in ("pid", "compute ms", "queue ms", "steps"):
        table.add_column(name, justify="right")
    table.add_column("address")
    table.add_column("state")
    for worker in workers:
        table.add_row(
            str(worker.stage),
            f"[{worker.layer_start}, {worker.layer_end})",
            Text(worker.node),
            Text(worker.worker),
            str(worker.pid),
            _milliseconds(worker.compute_ms),
            _milliseconds(worker.queue_ms),
            str(worker.steps),
            Text(worker.address),
            Text(worker.state, style="green" if worker.state == "live" else "red"),
        )
    return table


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _duration(duration_s: float) -> str:
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
