"""What counts as a lost worker: a process that ended, or one that answers no ping."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import zmq

from shoal.control import watchdog
from shoal.control.watchdog import Watchdog
from shoal.core.placement import Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.wire.control import ControlServer
from shoal.wire.curve import SecureContext, bind_free_port
from shoal.wire.messages import PROTOCOL_VERSION, Ping, Pong, decode_control, encode
from tests.support.jumping_clock import JumpingClock
from tests.support.processes import wait_until

DEADLINE_S = 20.0

Losses = queue.SimpleQueue[tuple[WorkerId, str]]

# A worker as far as the watchdog can see: its control socket, in a process of its own.
_ANSWERING = """
import sys
from shoal.wire.control import ControlServer
from shoal.wire.curve import SecureContext
from shoal.wire.messages import PROTOCOL_VERSION, Pong
secure = SecureContext()
secure.allowed.replace([sys.argv[1]])
def pong(nonce):
    return Pong(nonce, PROTOCOL_VERSION, "w", 1, 0, None, 0, 0)
server = ControlServer(secure, "127.0.0.1", pong)
server.start()
print(server.port, secure.public_key, flush=True)
sys.stdin.read()
"""


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


@pytest.fixture
def answering_process(secure: SecureContext) -> Iterator[tuple[subprocess.Popen[str], WorkerInfo]]:
    with subprocess.Popen(
        [sys.executable, "-c", _ANSWERING, secure.public_key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        port, key = running.stdout.readline().split()
        yield running, info_of(key, int(port), running.pid)
        running.kill()


@contextmanager
def watching(*infos: WorkerInfo, secure: SecureContext) -> Iterator[tuple[Watchdog, Losses]]:
    losses: Losses = queue.SimpleQueue()
    dog = Watchdog(secure, lambda worker, cause: losses.put((worker, cause)))
    dog.start()
    for info in infos:
        dog.watch(info)
    try:
        yield dog, losses
    finally:
        dog.stop()


def info_of(
    public_key: str, control_port: int, pid: int, *, worker: str = "w", address: str = "127.0.0.1"
) -> WorkerInfo:
    endpoint = Endpoint(address, 1, public_key)
    return WorkerInfo(WorkerId(worker), NodeId("n"), LayerRange(0, 2), endpoint, control_port, pid)


def pong(nonce: int, computing_step: int | None = None, progress: int = 0) -> Pong:
    return Pong(nonce, PROTOCOL_VERSION, WorkerId("w"), 1, 0, computing_step, progress, 0)


@contextmanager
def answering(secure: SecureContext, answer: Callable[[int], Pong] = pong) -> Iterator[int]:
    """The port of a control socket that answers so."""
    server = ControlServer(secure, "127.0.0.1", answer)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.fixture
def answering_port(secure: SecureContext) -> Iterator[int]:
    with answering(secure) as port:
        yield port


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short intervals and little patience, so that silence is noticed soon."""
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.02)
    monkeypatch.setattr(watchdog, "PATIENCE_S", 1.0)


def test_a_worker_whose_process_ends_is_lost_at_once_and_once(
    secure: SecureContext, process: subprocess.Popen[bytes], answering_port: int
) -> None:
    info = info_of(secure.public_key, answering_port, process.pid)
    with watching(info, secure=secure) as (_, losses):
        process.kill()
        assert losses.get(timeout=DEADLINE_S) == ("w", f"its process {process.pid} has ended")
    assert losses.empty()


def test_a_process_that_is_gone_already_is_lost(
    secure: SecureContext, process: subprocess.Popen[bytes], answering_port: int
) -> None:
    process.kill()
    process.wait()
    info = info_of(secure.public_key, answering_port, process.pid)
    with watching(info, secure=secure) as (_, losses):
        assert "has ended" in losses.get(timeout=DEADLINE_S)[1]


@pytest.mark.usefixtures("hurried")
def test_a_worker_that_lives_but_answers_nothing_is_lost_when_patience_ends(
    secure: SecureContext, process: subprocess.Popen[bytes]
) -> None:
    with secure.server_socket(zmq.ROUTER) as silent:  # takes pings, never answers
        info = info_of(secure.public_key, bind_free_port(silent, "127.0.0.1"), process.pid)
        with watching(info, secure=secure) as (_, losses):
            assert "no answer to pings for" in losses.get(timeout=DEADLINE_S)[1]


def test_a_frozen_process_is_lost_though_its_connections_stand(
    secure: SecureContext, answering_process: tuple[subprocess.Popen[str], WorkerInfo]
) -> None:
    process, info = answering_process
    with watching(info, secure=secure) as (dog, losses):
        wait_until(lambda: dog.round_trip_s(info.worker) is not None, deadline_s=DEADLINE_S, what="a pong")
        assert not dog.is_delayed(info.worker)
        os.kill(process.pid, signal.SIGSTOP)
        worker, cause = losses.get(timeout=DEADLINE_S)
    assert worker == info.worker
    assert cause.startswith("no answer to pings")


def test_a_killed_process_of_another_machine_shows_by_its_broken_connection(
    secure: SecureContext,
    answering_process: tuple[subprocess.Popen[str], WorkerInfo],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, info = answering_process
    monkeypatch.setattr(watchdog, "PATIENCE_S", 1000.0)
    info = replace(info, is_local=False)
    with watching(info, secure=secure) as (dog, losses):
        wait_until(lambda: dog.round_trip_s(info.worker) is not None, deadline_s=DEADLINE_S, what="a pong")
        process.kill()
        assert losses.get(timeout=DEADLINE_S) == ("w", "its connection broke and it does not answer")


@pytest.mark.usefixtures("hurried")
def test_a_worker_that_answers_now_and_then_is_not_lost(
    secure: SecureContext, process: subprocess.Popen[bytes]
) -> None:
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer_each_third(nonce: int) -> Pong:
        answered.put(nonce)
        return pong(nonce if nonce % 3 == 0 else -1)

    with answering(secure, answer_each_third) as port:
        info = info_of(secure.public_key, port, process.pid)
        with watching(info, secure=secure) as (_, losses):
            for _ in range(75):  # longer than the patience
                answered.get(timeout=DEADLINE_S)
            assert losses.empty()


def test_a_worker_that_answers_slowly_but_always_is_delayed_and_not_lost(
    secure: SecureContext, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.01)
    monkeypatch.setattr(watchdog, "PATIENCE_S", 1.0)
    monkeypatch.setattr(watchdog, "DELAYED_S", 0.05)
    with secure.server_socket(zmq.ROUTER) as slow:
        port = bind_free_port(slow, "127.0.0.1")
        waiting: list[tuple[bytes, int]] = []
        with watching(info_of(secure.public_key, port, process.pid), secure=secure) as (dog, losses):
            for _ in range(150):  # each answer is ten pings late
                assert slow.poll(int(1000 * DEADLINE_S))
                identity, frame = slow.recv_multipart()
                ping = decode_control(frame)
                assert isinstance(ping, Ping)
                waiting.append((identity, ping.nonce))
                if len(waiting) > 10:
                    to, nonce = waiting.pop(0)
                    slow.send_multipart([to, encode(pong(nonce))])
            assert losses.empty()
            round_trip_s = dog.round_trip_s(WorkerId("w"))
            assert round_trip_s is not None
            assert round_trip_s > 0.05
            assert dog.is_delayed(WorkerId("w"))


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(("progress", "is_lost"), [(lambda nonce: 5, True), (lambda nonce: nonce, False)])
def test_a_worker_that_answers_is_lost_only_when_its_batch_stands_still(
    secure: SecureContext,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    progress: Callable[[int], int],
    is_lost: bool,
) -> None:
    monkeypatch.setattr(watchdog, "STUCK_S", 1.0)
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer(nonce: int) -> Pong:
        answered.put(nonce)
        return pong(nonce, computing_step=17, progress=progress(nonce))

    with answering(secure, answer) as port:
        info = info_of(secure.public_key, port, process.pid)
        with watching(info, secure=secure) as (_, losses):
            if is_lost:
                assert "step 17 has made no progress" in losses.get(timeout=DEADLINE_S)[1]
                return
            for _ in range(75):
                answered.get(timeout=DEADLINE_S)
            assert losses.empty()


def test_time_in_which_the_head_itself_slept_is_nobodys_silence(
    secure: SecureContext, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = JumpingClock()
    monkeypatch.setattr(watchdog, "time", clock)
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer(nonce: int) -> Pong:
        answered.put(nonce)
        return pong(nonce)

    with answering(secure, answer) as port:
        info = info_of(secure.public_key, port, process.pid)
        with watching(info, secure=secure) as (_, losses):
            answered.get(timeout=DEADLINE_S)
            clock.jump(60.0)
            for _ in range(4):
                answered.get(timeout=DEADLINE_S)
            assert losses.empty()


def test_an_idle_worker_is_not_stuck(
    secure: SecureContext, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL_S", 0.01)
    monkeypatch.setattr(watchdog, "STUCK_S", 0.5)
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer(nonce: int) -> Pong:
        answered.put(nonce)
        return pong(nonce)

    with answering(secure, answer) as port:
        info = info_of(secure.public_key, port, process.pid)
        with watching(info, secure=secure) as (_, losses):
            for _ in range(80):
                answered.get(timeout=DEADLINE_S)
            assert losses.empty()


def test_a_worker_that_is_forgotten_is_not_missed_and_others_still_are(
    secure: SecureContext, process: subprocess.Popen[bytes], answering_port: int
) -> None:
    with subprocess.Popen(["sleep", "300"]) as other:
        forgotten = info_of(secure.public_key, answering_port, process.pid, worker="forgotten")
        missed = info_of(secure.public_key, answering_port, other.pid, worker="missed")
        with watching(forgotten, missed, secure=secure) as (dog, losses):
            dog.forget(forgotten.worker)
            dog.forget(forgotten.worker)
            process.kill()
            process.wait()
            other.kill()
            assert losses.get(timeout=DEADLINE_S)[0] == "missed"
        assert losses.empty()


def test_a_worker_may_come_while_others_are_watched(
    secure: SecureContext, process: subprocess.Popen[bytes], answering_port: int
) -> None:
    with watching(secure=secure) as (dog, losses):
        dog.watch(info_of(secure.public_key, answering_port, process.pid))
        wait_until(lambda: dog.round_trip_s(WorkerId("w")) is not None, deadline_s=DEADLINE_S, what="a pong")
        process.kill()
        assert losses.get(timeout=DEADLINE_S)[0] == "w"
        wait_until(lambda: dog.round_trip_s(WorkerId("w")) is None, deadline_s=DEADLINE_S, what="forgotten")
