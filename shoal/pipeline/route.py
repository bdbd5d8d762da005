"""The route that steps take, and the change from one to the next. Pure.

A change has two halves: everybody of the new placement is told of it, and only when all have
answered does the driver send along it. So no worker gets a step from somebody it would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.placement import DRIVER, Endpoint, Placement, WorkerId, WorkerInfo
from shoal.pipeline.scheduler import Scheduler
from shoal.wire.messages import Peer, Peers

TELL_AGAIN_S = 0.5


@dataclass(slots=True)
class Route:
    """The stages that steps go through now."""

    placement: Placement
    scheduler: Scheduler
    stages: tuple[WorkerId, ...] = field(init=False)
    after_first: tuple[str, ...] = field(init=False)
    first_standbys: tuple[WorkerId, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.stages = tuple(stage.worker for stage in self.placement.stages)
        self.after_first = (*self.stages[1:], DRIVER)
        self.first_standbys = self.placement.hot_standbys(0)

    @property
    def epoch(self) -> int:
        return self.placement.epoch


@dataclass(slots=True)
class RouteChange:
    """A placement that not everybody has confirmed yet.

    Standbys are told before stages: while steps flow, a stage feeds a standby as soon as it knows
    of it, and by then the standby must let it in.
    """

    route: Route
    driver: Endpoint
    tell_again_s: float = 0.0
    _standbys: set[str] = field(init=False)
    _stages: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._standbys = {standby.info.worker for standby in self.route.placement.standbys}
        self._stages = set(self.route.stages)

    @property
    def is_confirmed(self) -> bool:
        return not self._standbys and not self._stages

    def confirm(self, worker: str) -> bool:
        """A worker knows. True when others may be told now that could not be before."""
        waited = bool(self._standbys)
        self._standbys.discard(worker)
        self._stages.discard(worker)
        return waited and not self._standbys and bool(self._stages)

    def messages(self, now_s: float) -> list[tuple[WorkerId, Peers]]:
        """What those who have not confirmed must be told now."""
        self.tell_again_s = now_s + TELL_AGAIN_S
        workers = self.route.placement.workers
        peers = (_peer(DRIVER, self.driver), *(_peer(worker.worker, worker.endpoint) for worker in workers))
        unconfirmed = self._standbys or self._stages
        return [(w.worker, self._peers(w, peers)) for w in workers if w.worker in unconfirmed]

    def _peers(self, worker: WorkerInfo, peers: tuple[Peer, ...]) -> Peers:
        placement = self.route.placement
        return Peers(
            placement.epoch,
            peers,
            placement.predecessor(worker),
            placement.feeds(worker),
            placement.awaits_states(worker),
        )


def _peer(worker: WorkerId, endpoint: Endpoint) -> Peer:
    return Peer(worker, endpoint.address, endpoint.port, endpoint.public_key)
