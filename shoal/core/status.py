"""What the head tells about itself: the shapes behind `/admin/status` and `shoal status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. role: "stage", "hot standby", "warm standby", or "loaded" before it is placed. state:
    "live", "slow" (its steps take far longer than they did), "delayed" (its pings take long) or "lost".
    `compute_ms` and `queue_ms`: medians over the last steps, None before any. ping_ms: of the last ping.
    journal_bytes: what its journals take; cut_journals: sessions of which they have the last rows only;
    journal_cuts, long_pulls: how often that happened, and how often it made a session be computed again
    from farther up. computed_tokens, compute_s: all that it has computed; pulled_tokens, pull_s: the part
    of that which was computed again after a loss."""

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
    journal_bytes: int = 0
    cut_journals: int = 0
    journal_cuts: int = 0
    long_pulls: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    pulled_tokens: int = 0
    pull_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine, and what would happen if it were lost now. predicted_stall_s: until the next
    token, None where requests would end."""

    node: str
    if_lost: str
    predicted_stall_s: float | None


@dataclass(frozen=True, slots=True)
class LossStatus:
    """One worker that was lost. end: what became of it. rung: how its stage was replaced; replaced_s: when
    it was, since the loss was noticed, loading included; stall_s: how long streams stood still; None where
    that did not happen, or not yet."""

    node: str
    worker: str
    layer_start: int
    layer_end: int
    cause: str
    end: str
    rung: str | None
    predicted_stall_s: float | None
    stall_s: float | None
    replaced_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole placement, as it is now. `missing_layers`: ranges without a live owner. mode:
    "default" or "invariant". journal_limit_bytes: of each worker."""

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
    journal_limit_bytes: int = 0
