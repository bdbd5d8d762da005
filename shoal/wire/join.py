"""The sockets over which a machine joins: the head's door, and the machine's end.

CURVE like all others. The head's key lasts as long as its tokens do; a client's key is that of the
token it was given, so a machine without one cannot say a word. Each socket is used by one thread; any
thread may `wake` that one.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import Enum

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.core.errors import ConfigError
from shoal.core.join_token import JoinToken
from shoal.wire.curve import SecureContext, public_key_of, zmq_address
from shoal.wire.join_messages import (
    CHUNK_BYTES,
    FromHead,
    FromNode,
    Garbage,
    Greeting,
    decode_from_head,
    decode_from_node,
    encode_join,
)

MAX_REQUEST_BYTES = 2**16
MAX_REPLY_BYTES = 2 * CHUNK_BYTES
MAX_RECEIVED_AT_ONCE = 64
# A cable that was pulled closes no connection: what is queued for it must not stay for ever.
_PROBE_INTERVAL_MS = 1000
_PROBE_TIMEOUT_MS = 5000

logger = logging.getLogger(__name__)


class LinkNews(Enum):
    """What happened to a machine's connection to the head."""

    TOKEN_REFUSED = "the head does not know this token"
    BROKEN = "the connection broke"


@dataclass(frozen=True, slots=True)
class NodeArrival:
    """peer: the connection; a machine that connects again has another."""

    peer: bytes
    message: FromNode | Greeting | Garbage


@dataclass(frozen=True, slots=True)
class HeadArrival:
    message: FromHead
    payload: bytes | None


class JoinServer:
    """The head's end. secure: holds the head's lasting key; its allow-list has the tokens' keys."""

    def __init__(self, secure: SecureContext, address: str, port: int) -> None:
        """Raises ConfigError where it cannot listen there. port 0: the system chooses."""
        self._socket = secure.server_socket(zmq.ROUTER)
        self._socket.maxmsgsize = MAX_REQUEST_BYTES
        _set_probes(self._socket)
        try:
            self._socket.bind(zmq_address(address, port))
        except zmq.ZMQError as error:
            self._socket.close()
            cause = os.strerror(error.errno or 0).lower()
            raise ConfigError(
                f"Cannot listen for machines that join on {address} port {port}: {cause}.",
                next_step="Use --join-listen with an address of this machine and a port that is free.",
            ) from error
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = address
        self.port = int(endpoint.rsplit(":", 1)[1])
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)

    def receive(self, timeout_s: float) -> list[NodeArrival]:
        """Wait for messages, for `wake`, or for the time to pass."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        arrivals: list[NodeArrival] = []
        while len(arrivals) < MAX_RECEIVED_AT_ONCE:
            try:
                peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            arrivals.append(NodeArrival(peer, _decode_one(frames)))
        return arrivals

    def send(self, peer: bytes, message: FromHead, payload: bytes | None = None) -> None:
        """Queue a message, never waiting; dropped where the peer is gone."""
        frames = [peer, encode_join(message)]
        if payload is not None:
            frames.append(payload)
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            logger.warning("a machine that joined takes no more messages; one was dropped")

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def close(self, linger_s: float = 0.0) -> None:
        """linger_s: how long what was sent last may still take."""
        self._socket.close(linger=int(linger_s * 1000))
        os.close(self._wake_fd)


class JoinClient:
    """A machine's end. Connects at once; what fails shows as news."""

    def __init__(self, token: JoinToken, address: str, port: int) -> None:
        self._secure = SecureContext((public_key_of(token.secret_key), token.secret_key))
        self._socket = self._secure.client_socket(zmq.DEALER, token.head_key)
        self._socket.maxmsgsize = MAX_REPLY_BYTES
        _set_probes(self._socket)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
        )
        self._socket.connect(zmq_address(address, port))
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        for waited in (self._socket, self._monitor, self._wake_fd):
            self._poller.register(waited, zmq.POLLIN)

    def receive(self, timeout_s: float) -> tuple[list[HeadArrival], list[LinkNews]]:
        """Wait for messages, news, `wake`, or for the time to pass."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        arrivals: list[HeadArrival] = []
        while len(arrivals) < MAX_RECEIVED_AT_ONCE:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                message = decode_from_head(frames[0])
            except msgspec.DecodeError as error:
                logger.warning("dropped a message of the head that is of no kind known here: %s", error)
                continue
            arrivals.append(HeadArrival(message, frames[1] if len(frames) == 2 else None))
        return arrivals, self._news()

    def send(self, message: FromNode) -> None:
        """Queue a message, never waiting; dropped where the head takes none."""
        try:
            self._socket.send(encode_join(message), zmq.NOBLOCK)
        except zmq.Again:
            logger.info("there is no connection to the head; a message was dropped")

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        os.close(self._wake_fd)
        self._secure.close()

    def _news(self) -> list[LinkNews]:
        news = []
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            refused = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            news.append(LinkNews.TOKEN_REFUSED if refused else LinkNews.BROKEN)
        return news


def _decode_one(frames: list[bytes]) -> FromNode | Greeting | Garbage:
    try:
        return decode_from_node(frames[0]) if len(frames) == 1 else Garbage()
    except msgspec.DecodeError:
        return Garbage()


def _set_probes(socket: zmq.Socket[bytes]) -> None:
    socket.heartbeat_ivl = _PROBE_INTERVAL_MS
    socket.heartbeat_timeout = _PROBE_TIMEOUT_MS
