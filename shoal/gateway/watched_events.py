"""One answer's events, read while watching whether the client is still there.

Owns the generator: when the client leaves, when reading is cancelled and when the answer is
over, `close` ends it, which frees the session on every stage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType

from starlette.types import Receive

from shoal.core.errors import InvariantBroken
from shoal.core.sequence import ChoiceEvent


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer."""


class WatchedEvents:
    """Use as `async with`, or call `close`. Must be created inside a running loop, after the
    request's body has been read: `receive` then only reports the disconnect."""

    def __init__(self, events: AsyncGenerator[ChoiceEvent, None], receive: Receive) -> None:
        self._events = events
        self._next: asyncio.Task[ChoiceEvent | None] | None = None
        self._gone = asyncio.create_task(_wait_until_gone(receive))

    async def next(self, *, quiet_s: float | None = None) -> ChoiceEvent | None:
        """The next event, or None when none came for `quiet_s`; call again to go on waiting.

        Raises ClientGone, and whatever the generator raises.
        """
        if self._next is None:
            self._next = asyncio.create_task(_next_of(self._events))
        await asyncio.wait({self._next, self._gone}, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
        if self._gone.done():
            raise ClientGone
        if not self._next.done():
            return None
        task, self._next = self._next, None
        event = task.result()
        if event is None:
            raise InvariantBroken("An answer ended without saying why.")
        return event

    async def close(self) -> None:
        """End the generator and the watch. Idempotent."""
        for task in (self._gone, self._next):
            if task is not None:
                task.cancel()
                # Its outcome no longer matters to anyone: the answer is over.
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        self._next = None
        await self._events.aclose()

    async def __aenter__(self) -> WatchedEvents:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _next_of(events: AsyncGenerator[ChoiceEvent, None]) -> ChoiceEvent | None:
    return await anext(events, None)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
