"""Runs the application under uvicorn, inside a loop that belongs to someone else.

Binds before anything else, so that a busy port is known at once; takes no signals; stops in
bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from shoal.core.errors import ConfigError
from shoal.gateway.listen_address import DEFAULT_HOST, DEFAULT_PORT, url_of

_GRACE_S = 1
"""Answers in progress may end within this; then each is ended with an error."""

_FAREWELL_S = 0.3
"""For those errors to be written."""

_BACKLOG = 512

_KEEP_CONNECTION_S = 75
"""An idle connection is kept so long, longer than clients and proxies keep theirs: whoever closes at the
same moment as the other side sends loses a request. uvicorn's 5 s are just what httpx uses."""


def check_can_listen(host: str, port: int) -> None:
    """Raise ConfigError for an address that a gateway could not be started on now.

    Nobody is answered meanwhile: what asks whether a service is up must not hear of one that is not.
    """
    for bound in _bind(host, port):
        bound.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that this gateway is one part of."""
        yield


class GatewayServer:
    """`start`, then `stop` once. Port 0 lets the system choose; `port` then says which."""

    def __init__(self, app: ASGIApp, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> None:
        self.host = host
        self.port = port
        self._app = app
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)

    async def start(self) -> None:
        """Bind and answer requests. Raises ConfigError when the address cannot be bound."""
        sockets = await asyncio.to_thread(_bind, self.host, self.port)
        self.port = sockets[0].getsockname()[1]
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Whoever is trusted to name the client could read /admin/status from anywhere.
            proxy_headers=False,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_CONNECTION_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets), name="gateway")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise ConfigError("The HTTP server ended before it was up.")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Take no more requests and end those in progress, within 2 s. Idempotent."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait({self._serving}, timeout=_GRACE_S + _FAREWELL_S)
        self._serving.cancel()
        state = self._server.server_state
        await _settle(state.tasks)
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        # An aborted connection wakes the answer that was waiting to write to it.
        await _settle(state.tasks)
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        self._server = self._serving = None


async def _settle(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_FAREWELL_S)


def _bind(host: str, port: int) -> list[socket.socket]:
    """A listening-ready socket for every address of `host`, all on the same port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host!r}: the name is not known ({error.strerror}).",
            next_step="Give an address of this machine: --listen 127.0.0.1:8000.",
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            chosen = sockets[0].getsockname()[1] if sockets else port
            sockets.append(_bind_one(family, kind, protocol, (address[0], chosen, *address[2:])))
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise _cannot_bind(host, port, error) from None
    return sockets


def _bind_one(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        # A second server could bind too, and fail only later, if this one did not listen yet.
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _cannot_bind(host: str, port: int, error: OSError) -> ConfigError:
    where = f"[{host}]" if ":" in host else host
    other_port = port + 1 if port < 65535 else 0
    match error.errno:
        case errno.EADDRINUSE:
            return ConfigError(
                f"Port {port} on {host} is in use by another program.",
                next_step=f"End it, or choose another port: --listen {where}:{other_port}.",
            )
        case errno.EACCES:
            return ConfigError(
                f"This user may not listen on port {port}.",
                next_step=f"Choose a port from 1024 on: --listen {where}:8000.",
            )
        case errno.EADDRNOTAVAIL:
            return ConfigError(
                f"{host} is not an address of this machine.",
                next_step="Use 127.0.0.1 for this machine only, or 0.0.0.0 for every address of it.",
            )
    return ConfigError(f"Cannot listen on {where}:{port}: {error.strerror}.")
