"""The outermost layer of the application: a request id on every response, and an answer for
every failure that the routes did not foresee."""

from __future__ import annotations

import asyncio
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.errors import Cancelled
from shoal.gateway.error_replies import reply_to
from shoal.gateway.watched_events import ClientGone


class Edge:
    """ASGI middleware. Puts `request_id` into the request's state and `x-request-id` on its
    response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except (ClientGone, ClientDisconnect):
            return  # nobody is left to answer
        except asyncio.CancelledError:
            # Only the server's shutdown cancels this task, and with it the task ends.
            if is_started:
                raise
            reply = reply_to(Cancelled("The server is shutting down."), request_id=request_id)
            await reply.response()(scope, receive, send_with_id)
        except Exception as error:
            if is_started:
                raise
            await reply_to(error, request_id=request_id).response()(scope, receive, send_with_id)
