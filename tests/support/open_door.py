"""A head's door on loopback without a cluster behind it, and machines at it."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shoal.control.build import own_build
from shoal.control.join_door import DoorEvents, JoinDoor
from shoal.control.join_keys import create_token
from shoal.control.joined_machine import JoinConfig
from shoal.core.join_token import JoinToken
from shoal.core.placement import NodeId


@dataclass
class OpenDoor:
    """events: what the keeper would have been told."""

    door: JoinDoor
    folder: Path
    token: JoinToken
    token_id: str
    events: queue.SimpleQueue[tuple[str, NodeId]] = field(default_factory=queue.SimpleQueue)

    @property
    def port(self) -> int:
        return int(self.door.address.rsplit(":", 1)[1])

    def config(self, *, name: str = "pc", host: str = "127.0.0.1", address: str | None = None) -> JoinConfig:
        """A machine that would join here."""
        return JoinConfig(
            host=host,
            port=self.port,
            token=self.token,
            name=name,
            address=address,
            threads=1,
            memory_bytes=2**30,
            home=self.folder / "machine",
            state_root=self.folder / "m",
        )


@contextmanager
def open_door(address: str = "127.0.0.1") -> Iterator[OpenDoor]:
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        folder = Path(name)
        token_id, token = create_token(folder / "h", now_s=1.0)
        door = JoinDoor(folder / "h", address, 0, own_build(), same_bits=False)
        opened = OpenDoor(door, folder, token, token_id)
        events = opened.events
        door.start(
            DoorEvents(
                joined=lambda node: events.put(("joined", node)),
                gone=lambda node, cause: events.put(("gone", node)),
                leaves=lambda node: events.put(("leaves", node)),
            )
        )
        door.open("10.0.0.1:6379", "ray-secret")
        try:
            yield opened
        finally:
            door.stop()
