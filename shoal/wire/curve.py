"""Keys, and who may come in: CURVE encryption with an allow-list, for every socket of a process.

CURVE alone accepts any client that knows the server's public key, so a ZAP authenticator checks
each connecting key against the list of the cluster's processes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import zmq
import zmq.auth.thread

from shoal.core.errors import ConfigError

logger = logging.getLogger(__name__)


class AllowList:
    """The public keys that may connect. Replaced as a whole, read from the authenticator's thread."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = frozenset(keys)
        self.num_refused = 0

    def replace(self, keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by pyzmq's authenticator for each connection; `key` is Z85 text."""
        allowed = key.decode("ascii") in self._keys
        if not allowed:
            self.num_refused += 1
            # Once in a while is enough: who knocks without end must not flood the log.
            if self.num_refused & (self.num_refused - 1) == 0:
                logger.warning(
                    "refused a connection whose key is not in the cluster's allow-list (%d so far)",
                    self.num_refused,
                )
        return allowed


class SecureContext:
    """One process's ZeroMQ context with a key pair and an allow-list. keys: public and secret, as Z85
    text; fresh ones by default."""

    def __init__(self, keys: tuple[str, str] | None = None) -> None:
        if not zmq.has("curve"):
            raise ConfigError(
                "This pyzmq was built without CURVE, so links cannot be encrypted.",
                next_step="Install the pyzmq wheel from PyPI: pip install --force-reinstall pyzmq",
            )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        public, secret = new_keys() if keys is None else keys
        self._public, self._secret = public.encode("ascii"), secret.encode("ascii")
        self.allowed = AllowList()
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self.context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self.allowed)

    @property
    def public_key(self) -> str:
        return self._public.decode("ascii")

    def server_socket(self, kind: int) -> zmq.Socket[bytes]:
        """A socket that takes connections from allowed keys only."""
        socket = self._socket(kind)
        socket.curve_server = True
        return socket

    def client_socket(self, kind: int, server_key: str) -> zmq.Socket[bytes]:
        """A socket that connects to the process that holds `server_key`, and to no other."""
        socket = self._socket(kind)
        socket.curve_serverkey = server_key.encode("ascii")
        return socket

    def close(self) -> None:
        """End the authenticator and the context. Sockets should be closed before; one that was
        forgotten is closed here, since waiting for it would hang for ever."""
        self._authenticator.stop()
        self.context.destroy(linger=0)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.ipv6 = True
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        return socket


def new_keys() -> tuple[str, str]:
    """A fresh CURVE key pair, public and secret, as Z85 text."""
    public, secret = zmq.curve_keypair()
    return public.decode("ascii"), secret.decode("ascii")


def public_key_of(secret_key: str) -> str:
    """The public half of a secret CURVE key; both as Z85 text."""
    return zmq.curve_public(secret_key.encode("ascii")).decode("ascii")


def zmq_address(address: str, port: int) -> str:
    """`tcp://` form of an address; IPv6 in brackets."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def poll_ms(timeout_s: float) -> int:
    """A timeout for ZeroMQ's poll, which counts whole milliseconds: rounded up, since below one
    the loops that wait for a moment would ask again and again until it is there."""
    return max(0, math.ceil(timeout_s * 1000))


def bind_free_port(socket: zmq.Socket[bytes], address: str) -> int:
    """Bind to a port that is free now; returns it. Raises ConfigError where `address` is not ours."""
    try:
        host = f"[{address}]" if ":" in address else address
        return socket.bind_to_random_port(f"tcp://{host}")
    except zmq.ZMQError as error:
        socket.close()  # or its context could never end
        raise ConfigError(
            f"Cannot listen on {address}: {error.strerror or error}.",
            next_step="Use an address of this machine.",
        ) from error
