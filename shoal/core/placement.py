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
    """One worker as the head knows it. `control_port` answers pings on the same address."""

    worker: WorkerId
    node: NodeId
    layers: LayerRange
    endpoint: Endpoint
    control_port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The pipeline as it stands: `stages` cover all layers once, in order."""

    epoch: Epoch
    stages: tuple[WorkerInfo, ...]

    def covers(self, num_layers: int) -> bool:
        """Whether the stages cover `[0, num_layers)` once, in order."""
        expected = 0
        for stage in self.stages:
            if stage.layers.start != expected or stage.layers.num_layers <= 0:
                return False
            expected = stage.layers.end
        return expected == num_layers
