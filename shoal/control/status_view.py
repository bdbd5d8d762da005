"""What the head tells of itself, put together from the keeper's facts and the driver's figures."""

from __future__ import annotations

from collections.abc import Callable

from shoal.control.cluster_state import ClusterState, Loss
from shoal.control.recovery import Facts, Rung, if_lost, predict_stall_s
from shoal.core.placement import WorkerId, WorkerInfo
from shoal.core.status import ClusterStatus, LossStatus, NodeStatus, WorkerStatus
from shoal.pipeline.driver import DriverStatistics, StageFigures
from shoal.pipeline.stage_statistics import ReplayEstimate
from shoal.wire.messages import Pong

# What a worker says of itself and the status shows as it is.
_OF_PONG = (
    "journal_bytes", "cut_journals", "journal_cuts", "long_pulls", "computed_tokens", "compute_s",
    "pulled_tokens", "pull_s",
)  # fmt: skip
NO_FIGURES = StageFigures(None, None, 0, is_slow=False)


def cluster_status(
    *,
    model_id: str,
    is_ready: bool,
    n_ctx: int,
    uptime_s: float,
    mode: str,
    state: ClusterState,
    statistics: DriverStatistics,
    journal_limit_bytes: int,
    round_trip_s: Callable[[WorkerId], float | None],
    last_pong: Callable[[WorkerId], Pong | None],
    is_delayed: Callable[[WorkerId], bool],
) -> ClusterStatus:
    """The placement as it is now. round_trip_s: of a worker's last ping; last_pong: what it answered;
    is_delayed: whether its pings take long."""
    facts = state.facts()
    live = {worker.layers for worker in facts.live}
    return ClusterStatus(
        model=model_id,
        ready=is_ready,
        epoch=0 if facts.placement is None else facts.placement.epoch,
        n_ctx=n_ctx,
        workers=tuple(_workers(facts, statistics, round_trip_s, last_pong, is_delayed)),
        nodes=tuple(_nodes(facts, state, statistics.replay)),
        losses=tuple(_loss(loss) for loss in state.losses),
        missing_layers=tuple((r.start, r.end) for r in facts.ranges if r not in live),
        sessions_active=statistics.sessions_active,
        sessions_waiting=statistics.sessions_waiting,
        cells_reserved=statistics.cells_reserved,
        cells_total=statistics.cells_total,
        steps_in_flight=statistics.steps_in_flight,
        uptime_s=uptime_s,
        mode=mode,
        journal_limit_bytes=journal_limit_bytes,
    )


def _workers(
    facts: Facts,
    statistics: DriverStatistics,
    round_trip_s: Callable[[WorkerId], float | None],
    last_pong: Callable[[WorkerId], Pong | None],
    is_delayed: Callable[[WorkerId], bool],
) -> list[WorkerStatus]:
    stages = () if facts.placement is None else facts.placement.stages
    ordered = [*stages, *(worker for worker in facts.live if worker not in stages)]
    live = {worker.worker for worker in facts.live}
    return [
        _worker(
            worker,
            stage=facts.ranges.index(worker.layers),
            role=_role(facts, worker),
            is_live=worker.worker in live,
            figures=statistics.stages.get(worker.worker, NO_FIGURES),
            round_trip_s=round_trip_s(worker.worker),
            pong=last_pong(worker.worker),
            is_delayed=is_delayed(worker.worker),
        )
        for worker in ordered
    ]


def _role(facts: Facts, worker: WorkerInfo) -> str:
    placement = facts.placement
    if placement is None:
        return "loaded"
    if worker in placement.stages:
        return "stage"
    standby = next((s for s in placement.standbys if s.info == worker), None)
    if standby is None:
        return "loaded"
    return Rung.HOT.value if standby.is_hot else Rung.WARM.value


def _worker(
    worker: WorkerInfo,
    *,
    stage: int,
    role: str,
    is_live: bool,
    figures: StageFigures,
    round_trip_s: float | None,
    pong: Pong | None,
    is_delayed: bool,
) -> WorkerStatus:
    how_it_lives = "slow" if figures.is_slow else "delayed" if is_delayed else "live"
    return WorkerStatus(
        worker=worker.worker,
        node=worker.node,
        stage=stage,
        role=role,
        layer_start=worker.layers.start,
        layer_end=worker.layers.end,
        pid=worker.pid,
        address=f"{worker.endpoint.address}:{worker.endpoint.port}",
        state=how_it_lives if is_live else "lost",
        compute_ms=figures.compute_ms,
        queue_ms=figures.queue_ms,
        ping_ms=None if round_trip_s is None else 1000 * round_trip_s,
        steps=figures.steps,
        **({} if pong is None else {name: getattr(pong, name) for name in _OF_PONG}),
    )


def _nodes(facts: Facts, state: ClusterState, replay: ReplayEstimate) -> list[NodeStatus]:
    """What would happen if each machine were lost now."""
    slowest_load_s = max(state.load_s.values(), default=0.0)
    carrying = {worker.node for worker in facts.live}
    nodes = [NodeStatus(node, "nothing: it holds no layers", 0.0) for node in sorted(facts.joined - carrying)]
    for node in sorted(carrying):
        rung = if_lost(facts, node)
        load_s = slowest_load_s if rung is Rung.LOAD else 0.0
        stall_s = None if rung is None else predict_stall_s(replay, rung, load_s)
        outcome = "requests end with an error" if rung is None else f"{rung.value} takes over"
        nodes.append(NodeStatus(node=node, if_lost=outcome, predicted_stall_s=stall_s))
    return nodes


def _loss(loss: Loss) -> LossStatus:
    return LossStatus(
        node=loss.worker.node,
        worker=loss.worker.worker,
        layer_start=loss.worker.layers.start,
        layer_end=loss.worker.layers.end,
        cause=loss.cause,
        end=loss.end,
        rung=None if loss.rung is None else loss.rung.value,
        predicted_stall_s=loss.predicted_stall_s,
        stall_s=loss.stall_s,
        replaced_s=loss.replaced_s,
    )
