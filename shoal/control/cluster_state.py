"""What the head knows of its machines and workers right now: the facts that recovery decides on.

Bookkeeping for the keeper's thread, which others may look at; starts and ends nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shoal.control.recovery import Facts, NodeFact, Rung, Start
from shoal.core.placement import NodeId, Placement, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.interface import EngineLimits

REMEMBERED_LOSSES = 50


@dataclass(slots=True)
class Loss:
    """One worker that was lost, and what became of its stage. rung, replaced_s (since it was noticed),
    stall_s: None while open, or where it carried no stage. is_waited_for: its stage was replaced, and
    streams have not gone on."""

    worker: WorkerInfo
    cause: str
    noticed_s: float
    rung: Rung | None = None
    predicted_stall_s: float | None = None
    stall_s: float | None = None
    replaced_s: float | None = None
    end: str = "open"
    is_waited_for: bool = False


class ClusterState:
    """ranges: layers of the stages, in order. worker_bytes: memory that a worker of each may come
    to use. free_bytes: what a node can still give, asked anew each time, given what its workers may
    come to use. awaiting: layers that only a machine that joins may take first."""

    def __init__(
        self,
        ranges: Sequence[LayerRange],
        nodes: Sequence[NodeId],
        survive: int,
        worker_bytes: Mapping[LayerRange, int],
        free_bytes: Callable[[NodeId, int], int],
        awaiting: Collection[LayerRange] = (),
    ) -> None:
        self.placement: Placement | None = None
        self.losses: list[Loss] = []
        self.load_s: dict[LayerRange, float] = {}
        self.limits: dict[WorkerId, EngineLimits] = {}
        self._ranges = tuple(ranges)
        self._nodes = list(nodes)
        self._survive = survive
        self._worker_bytes = worker_bytes
        self._free_bytes = free_bytes
        self._awaiting = set(awaiting)
        self._joined: set[NodeId] = set()
        self._live: dict[WorkerId, WorkerInfo] = {}
        self._leaving: set[NodeId] = set()
        self._starting: list[Start] = []
        self._failed: set[Start] = set()

    @property
    def live(self) -> tuple[WorkerInfo, ...]:
        return tuple(self._live.values())

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._nodes)

    @property
    def joined(self) -> frozenset[NodeId]:
        """The nodes that are machines of their own."""
        return frozenset(self._joined)

    @property
    def awaiting(self) -> frozenset[LayerRange]:
        """Layers that wait for a machine that joins."""
        return frozenset(self._awaiting)

    def join(self, node: NodeId) -> None:
        """A machine has come; one that was here before is a new one."""
        if node not in self._nodes:
            self._nodes.append(node)
        self._joined.add(node)
        self._failed = {start for start in self._failed if start.node != node}
        self._leaving.discard(node)

    def remove(self, node: NodeId) -> None:
        """A machine that had joined is here no more. Its workers must be gone already."""
        self._nodes.remove(node)
        self._joined.discard(node)
        self._leaving.discard(node)

    def left(self) -> list[NodeId]:
        """Machines that asked to go and carry nothing any more."""
        busy = {worker.node for worker in self.live} | {start.node for start in self._starting}
        return [node for node in self._joined if node in self._leaving and node not in busy]

    def too_small_for(self, waiting: Collection[LayerRange]) -> str:
        """Which machines have joined, carry nothing, and cannot hold any of these layers, with the
        bytes that are missing; "" where there is none."""
        facts = self.facts()
        busy = {worker.node for worker in facts.live} | {start.node for start in facts.starting}
        need = min(self._worker_bytes[layers] for layers in waiting)
        small = [
            f"{fact.node} has {_mib(fact.free_bytes)} free and would need {_mib(need)}"
            for fact in facts.nodes
            if fact.node in self._joined and fact.node not in busy and fact.free_bytes < need
        ]
        return f"{'; '.join(small)}." if small else ""

    def facts(self) -> Facts:
        """Everything that `recovery.decide` needs, as it is now. From any thread: a machine may join while
        it is put together, so that each list is looked at once."""
        nodes, live, leaving = self.nodes, self.live, frozenset(self._leaving)
        starting = tuple(start for start in self._starting if start.node in nodes)
        on_the_way = dict.fromkeys(nodes, 0)
        for start in starting:
            on_the_way[start.node] += self._worker_bytes[start.layers]
        held = dict.fromkeys(nodes, 0)
        for worker in live:
            if worker.node in held:
                held[worker.node] += self._worker_bytes[worker.layers]
        return Facts(
            ranges=self._ranges,
            placement=self.placement,
            live=live,
            nodes=tuple(
                NodeFact(node, self._free_bytes(node, held[node]) - on_the_way[node])
                for node in nodes
                if node not in leaving
            ),
            starting=starting,
            survive=self._survive,
            slice_bytes=self._worker_bytes,
            leaving=leaving,
            failed=frozenset(self._failed),
            joined=self.joined,
            awaiting=self.awaiting,
        )

    def begin(self, start: Start) -> None:
        self._starting.append(start)

    def started(self, start: Start, info: WorkerInfo, limits: EngineLimits, load_s: float) -> None:
        """A worker has loaded and listens."""
        if start in self._starting:
            self._starting.remove(start)
        self._awaiting.discard(info.layers)
        self._live[info.worker] = info
        self.forgive(info.layers)
        self.limits[info.worker] = limits
        self.load_s[info.layers] = load_s

    def start_failed(self, start: Start) -> None:
        """A worker could not be started; its layers are tried elsewhere, until `forgive`. Where its machine
        has gone, that says nothing about the layers."""
        if start in self._starting:
            self._starting.remove(start)
        if start.node in self._nodes:
            self._failed.add(start)

    def forgive(self, layers: LayerRange) -> None:
        """Layers may be tried again wherever they could not be loaded; not while they are being
        loaded somewhere, so that all machines get their turn before one gets another."""
        if not any(start.layers == layers for start in self._starting):
            self._failed = {start for start in self._failed if start.layers != layers}

    def leave(self, node: NodeId) -> None:
        """A machine wants to go: it gets nothing new."""
        self._leaving.add(node)

    def retire(self, worker: WorkerId) -> WorkerInfo | None:
        """A worker has handed everything over and goes."""
        self.limits.pop(worker, None)
        return self._live.pop(worker, None)

    def idle_on_leaving(self) -> list[WorkerInfo]:
        """Workers on machines that leave which carry no stage: they can just go."""
        stages = () if self.placement is None else self.placement.stages
        return [w for w in self._live.values() if w.node in self._leaving and w not in stages]

    def lose(self, worker: WorkerId, cause: str) -> Loss | None:
        """A worker is gone. None where it was not there."""
        info = self._live.pop(worker, None)
        if info is None:
            return None
        self.limits.pop(worker, None)
        loss = Loss(info, cause, time.monotonic())
        self.losses = [*self.losses, loss][-REMEMBERED_LOSSES:]
        return loss


def _mib(num_bytes: int) -> str:
    return f"{max(0, num_bytes) / 2**20:.0f} MiB"
