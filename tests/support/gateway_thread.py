"""A real uvicorn on a free port, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from shoal.gateway.server import GatewayServer

DEADLINE_S = 10.0


@contextmanager
def gateway_thread(app: ASGIApp) -> Iterator[int]:
    """Serves `app` on loopback; yields the port."""
    server = GatewayServer(app, "127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway-loop")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(DEADLINE_S)
        yield server.port
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(DEADLINE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()
