"""What the gateway asks of a pipeline. The driver is the real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from shoal.core.sequence import GenerateEvent, GenerateRequest
from shoal.core.status import ClusterStatus


class TextGenerator(Protocol):
    """Answers requests, many at once. Used from one asyncio loop."""

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may have, prompt and answer together."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Admit the request and yield its text as it is made; the last event is `Finished`.

        Raises at the first step, with nothing spent: ContextLengthExceeded, Overloaded,
        NotReady. Raises later, after some text: NodeLost, StageTimeout, Cancelled. Closing the
        generator, or cancelling the task that reads it, frees the session on every stage.
        """
        ...


class ClusterView(Protocol):
    """What the health and admin routes may look at."""

    def status(self) -> ClusterStatus: ...

    def is_ready(self) -> bool:
        """True once a real token was produced, and while every layer has a live owner."""
        ...
