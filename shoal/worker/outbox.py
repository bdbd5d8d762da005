"""What a worker's policy wants sent, collected until the shell sends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.placement import WorkerId
from shoal.engine.interface import Rows
from shoal.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the wire, with the rows that travel behind it."""

    to: WorkerId
    message: Message
    rows: Rows | None = None


class Outbox:
    """worker: the name that messages are sent under."""

    def __init__(self, worker: WorkerId) -> None:
        self.worker = worker
        self._sends: list[Send] = []

    def send(self, to: WorkerId, message: Message, rows: Rows | None = None) -> None:
        self._sends.append(Send(to, message, rows))

    def take(self) -> list[Send]:
        """Everything since the last call, in order."""
        sends, self._sends = self._sends, []
        return sends
