"""An answer as server-sent events.

Order: each choice's role, text as it is made, each choice's finish reason when it ends, usage
where asked for, `[DONE]`. An answer that fails on the way ends with one `{"error": ...}` event and
without `[DONE]`, so that no client takes it for complete.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal.core.errors import Cancelled
from shoal.core.sequence import ChoiceEvent, Finished
from shoal.gateway.answer_format import AnswerFormat, Shape
from shoal.gateway.choices import ChoicesSoFar
from shoal.gateway.error_replies import reply_to
from shoal.gateway.watched_events import ClientGone, WatchedEvents

KEEP_ALIVE_S = 10.0
"""Longest silence on a stream; below the 15 to 60 s after which proxies cut idle connections."""

SEND_DEADLINE_S = 60.0
"""A client that reads nothing for this long is taken for gone, so that it holds no session."""

_KEEP_ALIVE = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
# Line ends to Python's splitlines, on which several clients rely, though not to JSON or SSE.
_LINE_ENDS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))


class EventStream(Response):
    """Sends `first` and then the rest of `events`; closes `events` whatever happens.

    first: the event that was awaited before the status line, or None when it took so long that
    the stream was begun without it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: WatchedEvents,
        first: ChoiceEvent | None,
        answer: AnswerFormat,
        *,
        request_id: str,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._first = first
        self._answer = answer
        self._request_id = request_id
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _send(
                send,
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers},
            )
            await self._send_answer(send)
            await _send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            return
        finally:
            await self._events.close()

    async def _send_answer(self, send: Send) -> None:
        try:
            await self._send_events(send)
        except ClientGone:
            raise
        except asyncio.CancelledError:
            # Only the server's shutdown cancels this task. The client is told, and the
            # cancellation ends here, because here the task ends.
            await self._send_error(send, Cancelled("The server is shutting down."))
        except Exception as error:
            await self._send_error(send, error)

    async def _send_events(self, send: Send) -> None:
        for opening in self._answer.openings():
            await _send_bytes(send, event_bytes(opening))
        so_far = ChoicesSoFar(self._answer.num_choices, keep_text=False)
        event = self._first
        while True:
            if event is None:
                await _send_bytes(send, _KEEP_ALIVE)
            else:
                so_far.add(event)
                if so_far.are_complete:
                    break
                await _send_bytes(send, self._event_bytes(event))
            event = await self._events.next(quiet_s=self._keep_alive_s)
        farewell = b"".join(event_bytes(chunk) for chunk in self._answer.farewell(so_far))
        await _send_bytes(send, self._event_bytes(event) + farewell + _DONE)

    def _event_bytes(self, event: ChoiceEvent) -> bytes:
        choice, what = event
        if isinstance(what, Finished):
            return event_bytes(self._answer.closing(choice, what))
        return event_bytes(self._answer.piece(choice, what))

    async def _send_error(self, send: Send, error: Exception) -> None:
        await _send_bytes(send, event_bytes(reply_to(error, request_id=self._request_id).body()))


def event_bytes(chunk: Shape) -> bytes:
    """One event; a single line whatever a client takes for a line end."""
    text = msgspec.json.encode(chunk)
    for character, escape in _LINE_ENDS:
        text = text.replace(character.encode(), escape)
    return b"data: " + text + b"\n\n"


async def _send_bytes(send: Send, body: bytes) -> None:
    await _send(send, {"type": "http.response.body", "body": body, "more_body": True})


async def _send(send: Send, message: dict[str, object]) -> None:
    try:
        async with asyncio.timeout(SEND_DEADLINE_S):
            await send(message)
    except (TimeoutError, OSError):
        raise ClientGone from None
