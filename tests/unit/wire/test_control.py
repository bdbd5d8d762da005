"""Pings, answered and not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import zmq

from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.wire.control import ControlServer, Pinger, PingerNews
from shoal.wire.curve import SecureContext, bind_free_port, zmq_address
from shoal.wire.messages import Close, Ping, Pong, encode

DEADLINE_S = 5.0

NewSecure = Callable[[], SecureContext]


def _pong(nonce: int) -> Pong:
    return Pong(nonce, 1, "w1", 2, 3, None, 4, 5)


def _info(key: str, port: int, worker: str = "w1") -> WorkerInfo:
    endpoint = Endpoint("127.0.0.1", 1, key)
    return WorkerInfo(WorkerId(worker), NodeId("box"), LayerRange(2, 4), endpoint, port, 99)


def _wait(
    pinger: Pinger, until: Callable[[PingerNews], object], deadline_s: float = DEADLINE_S
) -> PingerNews:
    """All news until some satisfies; that of the whole wait when none did by the deadline."""
    end_s = time.monotonic() + deadline_s
    pongs, closed = (), ()
    while (left_s := end_s - time.monotonic()) > 0:
        news = pinger.wait(left_s, [])
        pongs, closed = (*pongs, *news.pongs), (*closed, *news.closed)
        if until(news):
            break
    return PingerNews(pongs, closed, ())


def _ping(pinger: Pinger, deadline_s: float = DEADLINE_S) -> list[Pong]:
    """Ping once, and what came until the first answer or the deadline."""
    pinger.ping_all(time.monotonic())
    return [arrival.pong for arrival in _wait(pinger, lambda news: news.pongs, deadline_s).pongs]


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


@pytest.fixture
def pinger(head: SecureContext) -> Iterator[Pinger]:
    with closing(Pinger(head)) as pinger:
        yield pinger


def test_a_ping_is_answered_with_what_the_worker_says(
    pinger: Pinger, worker: SecureContext, server: ControlServer
) -> None:
    pinger.watch(_info(worker.public_key, server.port))
    assert _ping(pinger) == [_pong(1)]
    assert _ping(pinger) == [_pong(2)]


def test_an_answer_says_who_gave_it_and_how_long_it_took(
    pinger: Pinger, worker: SecureContext, server: ControlServer
) -> None:
    pinger.watch(_info(worker.public_key, server.port, "w7"))
    pinger.ping_all(time.monotonic() - 100)
    (arrival,) = _wait(pinger, lambda news: news.pongs).pongs
    assert arrival.worker == "w7"
    assert 100 <= arrival.round_trip_s < 100 + DEADLINE_S


def test_a_worker_that_answers_nothing_holds_up_nobody(
    pinger: Pinger, worker: SecureContext, server: ControlServer
) -> None:
    with worker.server_socket(zmq.ROUTER) as silent:
        pinger.watch(_info(worker.public_key, bind_free_port(silent, "127.0.0.1"), "silent"))
        pinger.watch(_info(worker.public_key, server.port))
        for nonce in range(1, 4):
            assert _ping(pinger) == [_pong(nonce)]
        pinger.forget(WorkerId("w1"))
        assert _ping(pinger, 0.2) == []


def test_a_worker_that_does_not_prove_its_key_is_not_believed(
    pinger: Pinger, secure: NewSecure, server: ControlServer
) -> None:
    pinger.watch(_info(secure().public_key, server.port))
    assert _ping(pinger, 0.2) == []


def test_a_head_that_is_not_allowed_gets_no_answer(
    secure: NewSecure, worker: SecureContext, server: ControlServer
) -> None:
    with closing(Pinger(secure())) as stranger:
        stranger.watch(_info(worker.public_key, server.port))
        assert _ping(stranger, 0.2) == []


def test_an_answer_counts_once_and_only_to_a_ping_that_was_sent(
    pinger: Pinger, worker: SecureContext
) -> None:
    with worker.server_socket(zmq.ROUTER) as odd:
        pinger.watch(_info(worker.public_key, bind_free_port(odd, "127.0.0.1")))
        assert _ping(pinger, 0.2) == []

        def answer_wrongly_and_late() -> None:
            identity, _ = odd.recv_multipart()
            odd.recv_multipart()
            for frame in (_pong(7), Ping(2), None, _pong(1), _pong(1), _pong(2)):
                odd.send_multipart([identity, b"\xa1\xff" if frame is None else encode(frame)])

        thread = threading.Thread(target=answer_wrongly_and_late)
        thread.start()
        pinger.ping_all(time.monotonic())
        came: list[int] = []
        while 2 not in came:
            news = _wait(pinger, lambda news: news.pongs)
            assert news.pongs, f"only {came} came"
            came += [arrival.pong.nonce for arrival in news.pongs]
        thread.join(DEADLINE_S)
        assert came == [1, 2]


def test_a_worker_that_is_forgotten_is_not_pinged(
    pinger: Pinger, worker: SecureContext, server: ControlServer
) -> None:
    pinger.watch(_info(worker.public_key, server.port))
    assert _ping(pinger) == [_pong(1)]
    pinger.forget(WorkerId("w1"))
    pinger.forget(WorkerId("w1"))
    assert _ping(pinger, 0.1) == []


def test_a_wait_ends_when_something_else_can_be_read(pinger: Pinger) -> None:
    fd = os.eventfd(0)
    try:
        assert pinger.wait(0.0, [fd]) == PingerNews((), (), ())
        os.eventfd_write(fd, 1)
        assert pinger.wait(DEADLINE_S, [fd]) == PingerNews((), (), (fd,))
    finally:
        os.close(fd)


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
    head: SecureContext, pinger: Pinger, worker: SecureContext, server: ControlServer
) -> None:
    with head.client_socket(zmq.DEALER, worker.public_key) as socket:
        socket.connect(zmq_address("127.0.0.1", server.port))
        socket.send(b"x" * 5000)
        pinger.watch(_info(worker.public_key, server.port))
        assert _ping(pinger) == [_pong(1)]


def test_pings_are_answered_each_once_and_in_order(pinger: Pinger, worker: SecureContext) -> None:
    counted: list[int] = []

    def answer(nonce: int) -> Pong:
        counted.append(nonce)
        return _pong(nonce)

    server = ControlServer(worker, "127.0.0.1", answer)
    server.start()
    try:
        pinger.watch(_info(worker.public_key, server.port))
        for nonce in range(1, 21):
            assert _ping(pinger) == [_pong(nonce)]
    finally:
        server.stop()
        server.stop()
    assert counted == list(range(1, 21))


def test_a_stopped_server_answers_no_more_and_its_closed_connection_is_news(
    pinger: Pinger, worker: SecureContext
) -> None:
    server = ControlServer(worker, "127.0.0.1", _pong)
    server.start()
    pinger.watch(_info(worker.public_key, server.port))
    assert _ping(pinger) == [_pong(1)]
    server.stop()
    assert "w1" in _wait(pinger, lambda news: news.closed).closed
    assert _ping(pinger, 0.2) == []
