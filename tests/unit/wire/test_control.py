"""Pings, answered and not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from shoal.core.errors import NodeLost
from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.wire.control import ControlClient, ControlServer
from shoal.wire.curve import SecureContext, bind_free_port, zmq_address
from shoal.wire.messages import Close, Ping, Pong, encode

DEADLINE_S = 5.0

NewSecure = Callable[[], SecureContext]


def _pong(nonce: int) -> Pong:
    return Pong(nonce, 1, "w1", 2, 3, None, 4, 5)


def _info(key: str, port: int) -> WorkerInfo:
    endpoint = Endpoint("127.0.0.1", 1, key)
    return WorkerInfo(WorkerId("w1"), NodeId("box"), LayerRange(2, 4), endpoint, port, 99)


@pytest.fixture
def head(secure: NewSecure) -> SecureContext:
    return secure()


@pytest.fixture
def worker(secure: NewSecure, head: SecureContext) -> SecureContext:
    worker = secure()
    worker.allowed.replace([head.public_key])
    return worker


@pytest.fixture
def server(worker: SecureContext) -> Iterator[ControlServer]:
    server = ControlServer(worker, "127.0.0.1", _pong)
    server.start()
    yield server
    server.stop()


def test_a_ping_is_answered_with_what_the_worker_says(
    head: SecureContext, worker: SecureContext, server: ControlServer
) -> None:
    with ControlClient(head, _info(worker.public_key, server.port)) as client:
        assert client.ping(DEADLINE_S) == _pong(1)
        assert client.ping(DEADLINE_S) == _pong(2)


def test_a_ping_without_an_answer_is_a_lost_node_when_its_deadline_has_passed(
    head: SecureContext, worker: SecureContext
) -> None:
    with worker.server_socket(zmq.ROUTER) as silent:
        port = bind_free_port(silent, "127.0.0.1")
        with ControlClient(head, _info(worker.public_key, port)) as client:
            started_s = time.monotonic()
            with pytest.raises(NodeLost, match=r"Node box \(layers \[2, 4\)\) .* within 0\.2 s"):
                client.ping(0.2)
            assert time.monotonic() - started_s >= 0.19


def test_a_worker_that_does_not_prove_its_key_is_not_believed(
    head: SecureContext, secure: NewSecure, server: ControlServer
) -> None:
    with ControlClient(head, _info(secure().public_key, server.port)) as client, pytest.raises(NodeLost):
        client.ping(0.2)


def test_a_head_that_is_not_allowed_gets_no_answer(
    secure: NewSecure, worker: SecureContext, server: ControlServer
) -> None:
    with (
        ControlClient(secure(), _info(worker.public_key, server.port)) as client,
        pytest.raises(NodeLost),
    ):
        client.ping(0.2)


def test_only_the_answer_to_this_very_ping_counts(head: SecureContext, worker: SecureContext) -> None:
    with worker.server_socket(zmq.ROUTER) as slow:
        port = bind_free_port(slow, "127.0.0.1")
        with ControlClient(head, _info(worker.public_key, port)) as client:
            with pytest.raises(NodeLost):
                client.ping(0.2)

            def answer_late_then_garbage_then_rightly() -> None:
                identity, _ = slow.recv_multipart()
                slow.recv_multipart()
                for frame in (_pong(1), Ping(2), None, _pong(2)):
                    slow.send_multipart([identity, b"\xa1\xff" if frame is None else encode(frame)])

            thread = threading.Thread(target=answer_late_then_garbage_then_rightly)
            thread.start()
            assert client.ping(DEADLINE_S).nonce == 2
            thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    "frame", [b"", b"GET /", b"\x92\xa4ping\xa1\xff", b"\x91" * 4000, encode(Close((1,))), encode(_pong(1))]
)
def test_what_is_no_ping_gets_no_answer_and_the_next_ping_does(
    head: SecureContext, worker: SecureContext, server: ControlServer, frame: bytes
) -> None:
    with head.client_socket(zmq.DEALER, worker.public_key) as socket:
        socket.connect(zmq_address("127.0.0.1", server.port))
        socket.send(frame)
        socket.send(encode(Ping(9)))
        assert socket.poll(int(1000 * DEADLINE_S))
        assert socket.recv() == encode(_pong(9))


def test_a_frame_past_the_limit_ends_its_connection_and_the_next_is_answered(
    head: SecureContext, worker: SecureContext, server: ControlServer
) -> None:
    with head.client_socket(zmq.DEALER, worker.public_key) as socket:
        socket.connect(zmq_address("127.0.0.1", server.port))
        socket.send(b"x" * 5000)
        with ControlClient(head, _info(worker.public_key, server.port)) as client:
            assert client.ping(DEADLINE_S).nonce == 1


def test_a_worker_that_is_busy_still_answers(head: SecureContext, worker: SecureContext) -> None:
    counted: list[int] = []

    def answer(nonce: int) -> Pong:
        counted.append(nonce)
        return _pong(nonce)

    server = ControlServer(worker, "127.0.0.1", answer)
    server.start()
    try:
        with ControlClient(head, _info(worker.public_key, server.port)) as client:
            for _ in range(20):
                client.ping(DEADLINE_S)
    finally:
        server.stop()
        server.stop()
    assert counted == list(range(1, 21))


def test_a_stopped_server_answers_no_more(head: SecureContext, worker: SecureContext) -> None:
    server = ControlServer(worker, "127.0.0.1", _pong)
    server.start()
    with ControlClient(head, _info(worker.public_key, server.port)) as client:
        client.ping(DEADLINE_S)
        server.stop()
        with pytest.raises(NodeLost):
            client.ping(0.2)
