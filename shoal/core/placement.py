"""Who holds which layers: workers, the stages they carry, and the epoch that this is true for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from shoal.core.specs import LayerRange

NodeId = NewType("NodeId", str)
"""A machine."""

WorkerId = NewType("WorkerId", str)
"""One incarnation of a worker process; a restarted worker has another id."""

Epoch = NewType("Epoch", int)
"""Grows with every change of the route."""

DRIVER = WorkerId("driver")
"""The name under which the driver stands in routes and as predecessor of stage 0."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process listens for data-plane messages, and the CURVE key that it proves."""

    address: str
    port: int
    public_key: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as the head knows it. `control_port` answers pings on the same address. pid: on its own
    machine. is_local: that is the head's machine."""

    worker: WorkerId
    node: NodeId
    layers: LayerRange
    endpoint: Endpoint
    control_port: int
    pid: int
    is_local: bool = True


@dataclass(frozen=True, slots=True)
class Standby:
    """A worker that covers exactly a stage's layers and can take over. is_hot: it is fed every
    step and needs no pull; otherwise it has its weights loaded and nothing else. awaits_states:
    the stage's owner leaves, and will send its sessions here."""

    info: WorkerInfo
    is_hot: bool
    awaits_states: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The pipeline as it stands: `stages` cover all layers once, in order; `standbys` can take over."""

    epoch: Epoch
    stages: tuple[WorkerInfo, ...]
    standbys: tuple[Standby, ...] = ()

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """Everybody, stages first."""
        return (*self.stages, *(standby.info for standby in self.standbys))

    def predecessor(self, worker: WorkerInfo) -> WorkerId:
        """Who sends to a worker's stage."""
        before = [stage for stage in self.stages if stage.layers.end == worker.layers.start]
        return before[0].worker if before else DRIVER

    def hot_standbys(self, start_layer: int) -> tuple[WorkerId, ...]:
        """Hot standbys of the stage that begins at a layer."""
        return tuple(s.info.worker for s in self.standbys if s.is_hot and s.info.layers.start == start_layer)

    def awaits_states(self, worker: WorkerInfo) -> bool:
        return any(s.awaits_states for s in self.standbys if s.info == worker)

    def feeds(self, worker: WorkerInfo) -> tuple[WorkerId, ...]:
        """Whom a stage feeds beside the next stage; a standby feeds nobody."""
        return self.hot_standbys(worker.layers.end) if worker in self.stages else ()

    def covers(self, num_layers: int) -> bool:
        """Whether the stages cover `[0, num_layers)` once, in order."""
        expected = 0
        for stage in self.stages:
            if stage.layers.start != expected or stage.layers.num_layers <= 0:
                return False
            expected = stage.layers.end
        return expected == num_layers
