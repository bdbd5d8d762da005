"""The control socket: pings, answered by a thread that never computes.

A worker that computes for seconds still answers here, so that slow and dead can be told apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

import msgspec
import zmq

from shoal.core.errors import NodeLost
from shoal.core.placement import WorkerInfo
from shoal.wire.curve import SecureContext, bind_free_port, zmq_address
from shoal.wire.messages import Ping, Pong, decode_control, encode

MAX_CONTROL_FRAME_BYTES = 4096
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


class ControlClient:
    """Pings one worker. For one thread."""

    def __init__(self, secure: SecureContext, info: WorkerInfo) -> None:
        self._info = info
        self._nonce = 0
        self._socket = secure.client_socket(zmq.DEALER, info.endpoint.public_key)
        self._socket.connect(zmq_address(info.endpoint.address, info.control_port))

    def ping(self, deadline_s: float) -> Pong:
        """Ask once. Raises NodeLost when no answer to this very ping comes within `deadline_s`."""
        self._nonce += 1
        give_up_s = time.monotonic() + deadline_s
        try:
            self._socket.send(encode(Ping(self._nonce)), zmq.NOBLOCK)
        except zmq.Again:
            raise self._lost("its control socket takes no messages") from None
        while (left_s := give_up_s - time.monotonic()) > 0:
            if not self._socket.poll(max(1, int(left_s * 1000))):
                break
            try:
                pong = decode_control(self._socket.recv())
            except msgspec.DecodeError:
                continue
            if isinstance(pong, Pong) and pong.nonce == self._nonce:
                return pong
        raise self._lost(f"no answer to a ping within {deadline_s:.1f} s")

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _lost(self, cause: str) -> NodeLost:
        return NodeLost(node=self._info.node, layers=str(self._info.layers), cause=cause)
