"""What the head tells about itself: the shapes behind `/admin/status` and `shoal status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. `compute_ms` and `queue_ms`: medians over the last steps, None before any.
    state: "live" or "lost: <cause>"."""

    worker: str
    node: str
    stage: int
    layer_start: int
    layer_end: int
    pid: int
    address: str
    state: str
    compute_ms: float | None
    queue_ms: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole placement, as it is now. `missing_layers`: ranges without a live owner. mode:
    "default" or "invariant"."""

    model: str
    ready: bool
    epoch: int
    n_ctx: int
    workers: tuple[WorkerStatus, ...]
    missing_layers: tuple[tuple[int, int], ...]
    sessions_active: int
    sessions_waiting: int
    cells_reserved: int
    cells_total: int
    steps_in_flight: int
    uptime_s: float
    mode: str = "default"
