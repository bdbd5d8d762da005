"""What the driver's policy wants done, and what it has noticed about machines and links. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import ShoalError
from shoal.core.placement import DRIVER, WorkerId
from shoal.core.sequence import GenerateEvent, SessionId
from shoal.wire.messages import ToWorker


@dataclass(frozen=True, slots=True)
class SendTo:
    """Put a message to a worker on the wire."""

    to: WorkerId
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the next event, or the error that ends it, to whoever reads a session."""

    session: SessionId
    event: GenerateEvent | ShoalError


@dataclass(frozen=True, slots=True)
class LinkCut:
    """What `sender` sent on never reached `receiver`, though it was sent twice. Either may be the driver."""

    sender: WorkerId
    receiver: WorkerId

    @property
    def to_replace(self) -> WorkerId:
        """The receiver; where that is the driver itself, the one it does not hear."""
        return self.sender if self.receiver == DRIVER else self.receiver


@dataclass(frozen=True, slots=True)
class StageSilent:
    """`worker` has had a step for far longer than its steps take. It may be slow or stuck."""

    worker: WorkerId
    step_id: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first result after a change of the route. stall_s: since the route was suspended."""

    epoch: int
    stall_s: float


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`successor` holds all sessions of `leaving`, or has waited long enough for them."""

    leaving: WorkerId
    successor: WorkerId
    is_complete: bool


PipelineEvent = LinkCut | StageSilent | Resumed | HandedOver
Action = SendTo | Deliver | PipelineEvent
