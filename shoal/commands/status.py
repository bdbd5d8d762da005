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
from shoal.core.status import ClusterStatus, LossStatus, NodeStatus, WorkerStatus
from shoal.gateway.client import DEFAULT_URL, ApiClient, ClientError, endpoint_at

_QUIET_S = 5.0
_SHOWN_LOSSES = 10
_STATE_STYLES = {"live": "green", "slow": "yellow", "delayed": "yellow"}


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
    parts: list[RenderableType] = [_summary(found), _workers_table(found.workers)]
    parts += [Text(), _nodes_table(found.nodes)]
    if found.losses:
        parts += [Text(), _losses_table(found.losses)]
    return Group(*parts)


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
        f"Steps in flight: {found.steps_in_flight}.{_journals(found)}"
    )


def _journals(found: ClusterStatus) -> str:
    """How full the fullest worker's journals are, and what that has led to."""
    if not found.journal_limit_bytes:
        return ""
    most = max((worker.journal_bytes for worker in found.workers), default=0)
    num_cut = max((worker.cut_journals for worker in found.workers), default=0)
    text = f"\nJournals: {_mib(most)} of {_mib(found.journal_limit_bytes)} MiB used on the fullest worker."
    if num_cut:
        text += f" Cut for want of room: {num_cut} of its sessions; a loss makes those be computed again."
    return text


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f}" if num_bytes < 10 * 2**20 else f"{num_bytes / 2**20:.0f}"


def _missing(found: ClusterStatus) -> str:
    if not found.missing_layers:
        return ""
    ranges = ", ".join(f"[{start}, {end})" for start, end in found.missing_layers)
    return f" (layers {ranges} have no live owner)"


def _workers_table(workers: tuple[WorkerStatus, ...]) -> Table:
    table = Table("stage", "layers", "node", "role", box=None, pad_edge=False, header_style="bold")
    for name in ("pid", "compute ms", "queue ms", "steps"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for worker in workers:
        table.add_row(
            str(worker.stage),
            f"[{worker.layer_start}, {worker.layer_end})",
            Text(worker.node),
            Text(worker.role),
            str(worker.pid),
            _milliseconds(worker.compute_ms),
            _milliseconds(worker.queue_ms),
            str(worker.steps),
            Text(worker.state, style=_STATE_STYLES.get(worker.state, "red")),
        )
    return table


def _nodes_table(nodes: tuple[NodeStatus, ...]) -> Table:
    table = Table("node", "if it were lost now", box=None, pad_edge=False, header_style="bold")
    table.add_column("predicted stall", justify="right")
    for node in nodes:
        table.add_row(Text(node.node), Text(node.if_lost), _seconds(node.predicted_stall_s))
    return table


def _losses_table(losses: tuple[LossStatus, ...]) -> Table:
    table = Table("lost", "layers", "cause", "then", box=None, pad_edge=False, header_style="bold")
    for name in ("predicted", "stall"):
        table.add_column(name, justify="right")
    for loss in losses[-_SHOWN_LOSSES:]:
        table.add_row(
            Text(loss.node),
            f"[{loss.layer_start}, {loss.layer_end})",
            Text(loss.cause),
            Text(loss.rung or loss.end),
            _seconds(loss.predicted_stall_s),
            _seconds(loss.stall_s),
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _duration(duration_s: float) -> str:
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
