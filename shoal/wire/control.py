"""The control socket: pings, answered by a thread that never computes.

A worker that computes for seconds still answers here, so that slow and dead can be told apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.core.placement import WorkerId, WorkerInfo
from shoal.wire.curve import SecureContext, bind_free_port, poll_ms, zmq_address
from shoal.wire.messages import Ping, Pong, decode_control, encode

MAX_CONTROL_FRAME_BYTES = 4096
MAX_UNANSWERED = 64
_POLL_MS = 200

logger = logging.getLogger(__name__)


class ControlServer:
    """Answers pings with what `answer` says. Runs its own thread from `start` to `stop`."""

    def __init__(self, secure: SecureContext, listen_address: str, answer: Callable[[int], Pong]) -> None:
        self._socket = secure.server_socket(zmq.ROUTER)
        self._socket.maxmsgsize = MAX_CONTROL_FRAME_BYTES
        self._answer = answer
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="shoal-control", daemon=True)
        self.port = bind_free_port(self._socket, listen_address)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        with self._socket:
            while not self._stopping.is_set():
                if self._socket.poll(_POLL_MS):
                    self._answer_one()

    def _answer_one(self) -> None:
        identity, *frames = self._socket.recv_multipart()
        try:
            message = decode_control(frames[-1]) if frames else None
        except msgspec.DecodeError:
            message = None
        if isinstance(message, Ping):
            self._socket.send_multipart([identity, encode(self._answer(message.nonce))], zmq.NOBLOCK)


@dataclass(frozen=True, slots=True)
class PongArrival:
    """A worker's answer, and the seconds since the ping that it answers was sent."""

    worker: WorkerId
    pong: Pong
    round_trip_s: float


class Pinger:
    """Pings many workers at once and never waits for one of them. For one thread.

    A closed connection is reported like an answer that does not come, only at once.
    """

    def __init__(self, secure: SecureContext) -> None:
        self._secure = secure
        self._poller = zmq.Poller()
        self._peers: dict[WorkerId, _Pinged] = {}

    def watch(self, info: WorkerInfo) -> None:
        """Connect to a worker's control socket."""
        peer = _Pinged(self._secure, info)
        self._peers[info.worker] = peer
        self._poller.register(peer.socket, zmq.POLLIN)
        self._poller.register(peer.monitor, zmq.POLLIN)

    def forget(self, worker: WorkerId) -> None:
        """Stop pinging a worker. Idempotent."""
        peer = self._peers.pop(worker, None)
        if peer is not None:
            self._poller.unregister(peer.socket)
            self._poller.unregister(peer.monitor)
            peer.close()

    def ping_all(self, now_s: float) -> None:
        for peer in self._peers.values():
            peer.ping(now_s)

    def wait(self, timeout_s: float, fds: Sequence[int]) -> PingerNews:
        """Wait for pongs, closed connections or readable `fds`, at most `timeout_s`."""
        for fd in fds:
            self._poller.register(fd, zmq.POLLIN)
        ready = dict(self._poller.poll(poll_ms(timeout_s)))
        for fd in fds:
            self._poller.unregister(fd)
        now_s = time.monotonic()
        pongs = [
            PongArrival(worker, pong, round_trip_s)
            for worker, peer in self._peers.items()
            if peer.socket in ready
            for pong, round_trip_s in peer.pongs(now_s)
        ]
        closed = [
            worker for worker, peer in self._peers.items() if peer.monitor in ready and peer.was_closed()
        ]
        return PingerNews(tuple(pongs), tuple(closed), tuple(fd for fd in fds if fd in ready))

    def close(self) -> None:
        for worker in list(self._peers):
            self.forget(worker)


@dataclass(frozen=True, slots=True)
class PingerNews:
    """closed: workers whose connection has just broken. fds: those that are readable."""

    pongs: tuple[PongArrival, ...]
    closed: tuple[WorkerId, ...]
    fds: tuple[int, ...]


class _Pinged:
    """One worker's control socket, seen from here."""

    def __init__(self, secure: SecureContext, info: WorkerInfo) -> None:
        self.socket = secure.client_socket(zmq.DEALER, info.endpoint.public_key)
        self.socket.sndhwm = MAX_UNANSWERED
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(zmq_address(info.endpoint.address, info.control_port))
        self._sent_s: dict[int, float] = {}
        self._nonce = 0

    def ping(self, now_s: float) -> None:
        self._nonce += 1
        try:
            self.socket.send(encode(Ping(self._nonce)), zmq.NOBLOCK)
        except zmq.Again:
            return  # it takes none because it answers none; that shows by itself
        self._sent_s[self._nonce] = now_s
        for nonce in list(self._sent_s)[:-MAX_UNANSWERED]:
            del self._sent_s[nonce]

    def pongs(self, now_s: float) -> list[tuple[Pong, float]]:
        arrived = []
        while self.socket.poll(0):
            try:
                pong = decode_control(self.socket.recv(zmq.NOBLOCK))
            except msgspec.DecodeError:
                continue
            if isinstance(pong, Pong) and pong.nonce in self._sent_s:
                arrived.append((pong, now_s - self._sent_s.pop(pong.nonce)))
        return arrived

    def was_closed(self) -> bool:
        closed = False
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            closed = True
        return closed

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
