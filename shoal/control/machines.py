"""Where each node's workers run: on the head's machine, or on one that has joined."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.control.join_door import JoinDoor
from shoal.core.config import EngineConfig
from shoal.core.errors import ClusterError
from shoal.core.placement import NodeId, WorkerInfo


@dataclass(frozen=True, slots=True)
class Place:
    """A machine for workers. address: where they listen. resource: the Ray resource that only this
    incarnation of the machine has; None is the head's machine. threads: of each; None is as configured."""

    node: NodeId
    address: str
    resource: str | None = None
    threads: int | None = None

    @property
    def is_local(self) -> bool:
        return self.resource is None


class Machines:
    """address: the head's. local: the nodes on its machine. door: None where nobody can join."""

    def __init__(self, address: str, local: frozenset[NodeId], door: JoinDoor | None) -> None:
        self._address = address
        self._local = local
        self._door = door

    def place(self, node: NodeId) -> Place:
        """Where a node's workers are started now. Raises ClusterError for one that has gone."""
        if node in self._local:
            return Place(node, self._address)
        member = None if self._door is None else self._door.member(node)
        if member is None:
            raise ClusterError(f"Machine {node} has gone.")
        return Place(node, member.address, member.resource, member.threads)

    def is_gone(self, place: Place) -> bool:
        """Whether this incarnation of a machine is here no more."""
        if place.is_local:
            return False
        member = None if self._door is None else self._door.member(place.node)
        return member is None or member.resource != place.resource

    def bring(self, place: Place, engine: EngineConfig) -> EngineConfig:
        """An engine's configuration for a machine, which holds its files when this returns. Blocks
        while they are sent. Raises ClusterError."""
        if place.is_local or self._door is None:
            return engine
        slice_path, embedding_path = (
            None if path is None else self._door.fetch(place.node, path)
            for path in (engine.slice_path, engine.embedding_path)
        )
        threads = engine.threads if place.threads is None else place.threads
        return replace(engine, slice_path=slice_path, embedding_path=embedding_path, threads=threads)

    def end_worker(self, worker: WorkerInfo) -> None:
        """End a worker's process on a machine that has joined. Never raises."""
        if self._door is not None:
            self._door.end_worker(worker.node, worker.pid)

    def free_bytes(self, node: NodeId, held_bytes: int, local_bytes: int) -> int:
        """Memory that a node can still give. held_bytes: what its workers may come to use.
        local_bytes: what the head's machine has left."""
        if node in self._local:
            return local_bytes
        return 0 if self._door is None else self._door.free_bytes(node, held_bytes)
