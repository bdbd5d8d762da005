"""What the gateway asks of a pipeline. The driver is the real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from shoal.core.request_times import RequestTimes, RequestTotals
from shoal.core.sequence import ChoiceEvent, GenerateRequest
from shoal.core.status import ClusterStatus


class TextGenerator(Protocol):
    """Answers requests, many at once. Used from one asyncio loop."""

    @property
    def n_ctx(self) -> int:
        """Tokens that one sequence may have, prompt and answer together."""
        ...

    def generate_choices(self, requests: Sequence[GenerateRequest]) -> AsyncGenerator[ChoiceEvent, None]:
        """Admit the choices of one request, and yield the text of each as it is made.

        The last event of each choice is `Finished`; after the last of all the generator ends.
        Raises at the first step, with nothing spent: ContextLengthExceeded, Overloaded,
        NotReady. Raises later, after some text, when any choice fails: NodeLost, StageTimeout,
        Cancelled; the others then end too. Closing the generator, or cancelling the task that
        reads it, frees the sessions on every stage.
        """
        ...


class ClusterView(Protocol):
    """What the health, admin and metrics routes may look at."""

    def status(self) -> ClusterStatus: ...

    def request_times(self, request_id: str | None) -> tuple[RequestTimes, ...]:
        """Where the answers of one request spent their time; of the newest one without an id.
        Empty where it is not remembered."""
        ...

    def request_totals(self) -> RequestTotals: ...

    def is_ready(self) -> bool:
        """True once a real token was produced, and while every layer has a live owner."""
        ...

    def leave(self, node: str) -> None:
        """Let a machine go politely: what it carries is handed over. Returns at once.

        Raises ConfigError for a node that is not here.
        """
        ...
