"""What the head tells about itself: the shapes behind `/admin/status` and `shoal status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. role: "stage", "hot standby", "warm standby", or "loaded" before it is placed.
    state: "live", "slow" or "lost". `compute_ms` and `queue_ms`: medians over the last steps, None
    before any. ping_ms: of the last ping."""

    worker: str
    node: str
    stage: int
    role: str
    layer_start: int
    layer_end: int
    pid: int
    address: str
    state: str
    compute_ms: float | None
    queue_ms: float | None
    ping_ms: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine, and what would happen if it were lost now. predicted_stall_s: until the next
    token, None where requests would end."""

    node: str
    if_lost: str
    predicted_stall_s: float | None


@dataclass(frozen=True, slots=True)
class LossStatus:
    """One worker that was lost. end: what became of it. rung: how its stage was replaced; stall_s:
    how long streams stood still; None where that did not happen, or not yet."""

    node: str
    worker: str
    layer_start: int
    layer_end: int
    cause: str
    end: str
    rung: str | None
    predicted_stall_s: float | None
    stall_s: float | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole placement, as it is now. `missing_layers`: ranges without a live owner. mode:
    "default" or "invariant"."""

    model: str
    ready: bool
    epoch: int
    n_ctx: int
    workers: tuple[WorkerStatus, ...]
    nodes: tuple[NodeStatus, ...]
    losses: tuple[LossStatus, ...]
    missing_layers: tuple[tuple[int, int], ...]
    sessions_active: int
    sessions_waiting: int
    cells_reserved: int
    cells_total: int
    steps_in_flight: int
    uptime_s: float
    mode: str = "default"
