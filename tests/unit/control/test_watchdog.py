"""What counts as a lost worker: a process that ended, or one that answers no ping."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from shoal.control import watchdog
from shoal.control.watchdog import Watchdog
from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.wire.control import ControlServer
from shoal.wire.curve import SecureContext, bind_free_port
from shoal.wire.messages import PROTOCOL_VERSION, Pong

DEADLINE_S = 20.0

Losses = queue.SimpleQueue[tuple[WorkerInfo, str]]


@pytest.fixture
def secure() -> Iterator[SecureContext]:
    context = SecureContext()
    context.allowed.replace([context.public_key])
    yield context
    context.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as running:
        yield running
        running.kill()


@contextmanager
def watching(info: WorkerInfo, secure: SecureContext) -> Iterator[Losses]:
    losses: Losses = queue.SimpleQueue()
    dog = Watchdog([info], secure, lambda worker, cause: losses.put((worker, cause)))
    dog.start()
    try:
        yield losses
    finally:
        dog.stop()


def info_of(secure: SecureContext, control_port: int, pid: int) -> WorkerInfo:
    endpoint = Endpoint("127.0.0.1", 1, secure.public_key)
    return WorkerInfo(WorkerId("w"), NodeId("n"), LayerRange(0, 2), endpoint, control_port, pid)


def pong(nonce: int) -> Pong:
    return Pong(nonce, PROTOCOL_VERSION, WorkerId("w"), 1, 0, None, 0, 0)


@pytest.fixture
def answering_port(secure: SecureContext) -> Iterator[int]:
    server = ControlServer(secure, "127.0.0.1", pong)
    server.start()
    yield server.port
    server.stop()


def test_a_worker_whose_process_ends_is_lost_at_once_and_once(
    secure: SecureContext, process: subprocess.Popen[bytes], answering_port: int
) -> None:
    info = info_of(secure, answering_port, process.pid)
    with watching(info, secure) as losses:
        process.kill()
        assert losses.get(timeout=DEADLINE_S) == (info, f"its process {process.pid} has ended")
    assert losses.empty()


def test_a_process_that_is_gone_already_is_lost(
    secure: SecureContext, process: subprocess.Popen[bytes], answering_port: int
) -> None:
    process.kill()
    process.wait()
    with watching(info_of(secure, answering_port, process.pid), secure) as losses:
        assert "has ended" in losses.get(timeout=DEADLINE_S)[1]


def test_a_worker_that_lives_but_answers_nothing_is_lost_after_several_pings(
    secure: SecureContext, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.01)
    monkeypatch.setattr(watchdog, "PING_DEADLINE_S", 0.05)
    with secure.server_socket(zmq.ROUTER) as silent:  # takes pings, never answers
        port = bind_free_port(silent, "127.0.0.1")
        with watching(info_of(secure, port, process.pid), secure) as losses:
            assert "3 times in a row" in losses.get(timeout=DEADLINE_S)[1]


def test_a_worker_that_answers_again_is_not_lost(
    secure: SecureContext, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.0)
    monkeypatch.setattr(watchdog, "PING_DEADLINE_S", 0.1)
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer_each_third(nonce: int) -> Pong:
        answered.put(nonce)
        return pong(nonce if nonce % 3 == 0 else -1)

    server = ControlServer(secure, "127.0.0.1", answer_each_third)
    server.start()
    try:
        with watching(info_of(secure, server.port, process.pid), secure) as losses:
            for _ in range(9):
                answered.get(timeout=DEADLINE_S)
            assert losses.empty()
    finally:
        server.stop()  # an open socket would keep the context from closing, for ever
