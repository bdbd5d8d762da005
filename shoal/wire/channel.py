"""The data plane's socket: messages and boundary rows from process to process.

One process has one `Channel`: it receives from all peers on one bound socket and sends to each
over one connection of its own. One thread receives; any thread may `wake` it. Others may send and
set peers, one at a time: that is the caller's lock to hold. It knows nothing of what the messages
mean.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from shoal.core.placement import Endpoint, WorkerId
from shoal.wire.curve import SecureContext, bind_free_port, poll_ms, zmq_address
from shoal.wire.messages import Message, decode, encode

MAX_FRAME_BYTES = 256 * 2**20  # a chunk of 2,048 rows at a width of 16,384 is 128 MiB
MAX_QUEUED_MESSAGES = 1000
MAX_RECEIVED_AT_ONCE = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message, with the frame behind it if there was one."""

    message: Message
    payload: memoryview | None

    def rows(self, row_width: int) -> NDArray[np.float32] | None:
        """The payload as `[num_rows, row_width]` float32, uncopied; None where it is no such thing."""
        if self.payload is None or self.payload.nbytes == 0 or self.payload.nbytes % (4 * row_width):
            return None
        return np.frombuffer(self.payload, np.float32).reshape(-1, row_width)


class Channel:
    """listen_address: where to bind; also what peers are told to connect to."""

    def __init__(self, secure: SecureContext, listen_address: str) -> None:
        self._secure = secure
        self._inbound = secure.server_socket(zmq.PULL)
        self._inbound.maxmsgsize = MAX_FRAME_BYTES
        self._inbound.rcvhwm = MAX_QUEUED_MESSAGES
        port = bind_free_port(self._inbound, listen_address)
        self.endpoint = Endpoint(listen_address, port, secure.public_key)
        self.unsent_messages = 0
        self.bad_messages = 0
        self._peers: dict[WorkerId, Endpoint] = {}
        self._outbound: dict[WorkerId, zmq.Socket[bytes]] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._inbound, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)

    def set_peers(self, peers: Mapping[WorkerId, Endpoint]) -> None:
        """Let just these in, and know where they listen; connections to others are dropped with what
        was queued on them.

        A connection is made by the first `send`: a peer that has not been told of us yet would
        refuse it for good, and by then the head has told everybody.
        """
        self._secure.allowed.replace(peer.public_key for peer in peers.values())
        for name in [n for n in self._outbound if peers.get(n) != self._peers.get(n)]:
            self._outbound.pop(name).close()
        self._peers = dict(peers)

    def send(self, to: WorkerId, message: Message, rows: NDArray[np.float32] | None = None) -> bool:
        """Queue a message, never waiting. False, and counted, where `to` is unknown or its queue is
        full: the protocol asks again for what was lost. `rows` must not change afterwards."""
        socket = self._outbound.get(to) or self._connect(to)
        if socket is None:
            self.unsent_messages += 1
            return False
        try:
            if rows is None:
                socket.send(encode(message), zmq.NOBLOCK)
            else:
                socket.send(encode(message), zmq.NOBLOCK | zmq.SNDMORE)
                socket.send(np.ascontiguousarray(rows).data, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.unsent_messages += 1
            return False
        return True

    def _connect(self, to: WorkerId) -> zmq.Socket[bytes] | None:
        endpoint = self._peers.get(to)
        if endpoint is None:
            return None
        socket = self._secure.client_socket(zmq.PUSH, endpoint.public_key)
        socket.sndhwm = MAX_QUEUED_MESSAGES
        socket.connect(zmq_address(endpoint.address, endpoint.port))
        self._outbound[to] = socket
        return socket

    def receive(self, timeout_s: float) -> list[Arrival]:
        """Wait for messages, for `wake`, or for the time to pass; returns what has come, perhaps
        nothing. What cannot be decoded is dropped and counted."""
        ready = dict(self._poller.poll(poll_ms(timeout_s)))
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        arrivals: list[Arrival] = []
        if self._inbound in ready:
            while len(arrivals) < MAX_RECEIVED_AT_ONCE:
                try:
                    frames = self._inbound.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                arrival = self._decode(frames)
                if arrival is not None:
                    arrivals.append(arrival)
        return arrivals

    def wake(self) -> None:
        """Make a `receive` that waits in another thread return."""
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close all sockets; what was not sent is dropped."""
        for socket in self._outbound.values():
            socket.close()
        self._outbound.clear()
        self._inbound.close()
        os.close(self._wake_fd)

    def _decode(self, frames: list[zmq.Frame]) -> Arrival | None:
        try:
            if len(frames) > 2:
                raise msgspec.DecodeError(f"{len(frames)} frames")
            message = decode(frames[0].buffer)
        except msgspec.DecodeError as error:
            self.bad_messages += 1
            # Once in a while is enough: a peer that floods us must not flood the log.
            if self.bad_messages & (self.bad_messages - 1) == 0:
                logger.warning("dropped a message that is not ours (%d so far): %s", self.bad_messages, error)
            return None
        return Arrival(message, frames[1].buffer if len(frames) == 2 else None)
