"""One worker on real sockets and threads, spoken to by a head of this test."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import zmq

from shoal.core.config import EngineConfig, WorkerConfig
from shoal.core.placement import DRIVER, Endpoint, NodeId, WorkerId, WorkerInfo
from shoal.core.sequence import SamplingParams
from shoal.core.specs import LayerRange
from shoal.wire.channel import Channel
from shoal.wire.control import Pinger
from shoal.wire.curve import SecureContext, zmq_address
from shoal.wire.messages import (
    Close,
    Closed,
    Entry,
    Live,
    Message,
    Open,
    Peer,
    Peers,
    PeersTaken,
    Pong,
    Pull,
    Received,
    Result,
    StageReport,
    Step,
)
from shoal.worker import slice_worker
from shoal.worker.slice_worker import EXIT_BROKEN, EXIT_LEASE_ENDED, SliceWorker
from tests.support.jumping_clock import JumpingClock

DEADLINE_S = 5.0
ME, W9 = WorkerId("w0"), WorkerId("w9")


class Head:
    """What a worker sees of the head: a driver's channel and a control client."""

    def __init__(self, lease_s: float = 30.0) -> None:
        self.secure = SecureContext()
        self.channel = Channel(self.secure, "127.0.0.1")
        self.exits: list[int] = []
        engine = EngineConfig("digest", None, None, n_vocab=97)
        config = WorkerConfig(
            ME, NodeId("box"), LayerRange(0, 2), 2, engine, self.channel.endpoint, lease_s=lease_s
        )
        self.worker = SliceWorker(config, end_process=self.exits.append)
        self._heard: list[Message] = []

    def start(self) -> None:
        self.listening = self.worker.start()
        self.channel.set_peers({ME: self.listening.endpoint})
        self.send_peers(1)

    def send_peers(
        self, epoch: int, predecessor: WorkerId = DRIVER, others: dict[WorkerId, Endpoint] | None = None
    ) -> None:
        """Tell the worker of a placement, and wait until it has taken it."""
        everybody = {DRIVER: self.channel.endpoint} | (others or {})
        peers = tuple(Peer(name, e.address, e.port, e.public_key) for name, e in everybody.items())
        self.channel.send(ME, Peers(epoch, peers, predecessor, ()))
        assert self.hear(PeersTaken) == PeersTaken(epoch, ME)

    def ping(self, pinger: Pinger) -> Pong:
        """One answer, within the deadline."""
        pinger.ping_all(time.monotonic())
        give_up_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < give_up_s:
            news = pinger.wait(0.1, [])
            if news.pongs:
                return news.pongs[-1].pong
        raise AssertionError("no pong")

    def info(self) -> WorkerInfo:
        heard = self.listening
        return WorkerInfo(ME, NodeId("box"), LayerRange(0, 2), heard.endpoint, heard.control_port, heard.pid)

    def send_step(self, start: int = 0, step_id: int = 1) -> None:
        entry = Entry(1, 0, start, (start, start + 1), True)
        opens = (Open(1, 0, 2, 50, SamplingParams(temperature=0.0)),) if start == 0 else ()
        self.channel.send(ME, Step(1, step_id, DRIVER, (DRIVER,), (entry,), opens))

    def hear(self, kind: type) -> Message:
        """The next message of a kind; fails when none comes."""
        give_up_s = time.monotonic() + DEADLINE_S
        while True:
            for message in self._heard:
                if isinstance(message, kind):
                    self._heard.remove(message)
                    return message
            assert time.monotonic() < give_up_s, f"no {kind.__name__}, only {self._heard}"
            self._heard += [arrival.message for arrival in self.channel.receive(0.1)]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < give_up_s
            self._heard += [arrival.message for arrival in self.channel.receive(0.02)]

    def close(self) -> None:
        self.worker.stop()
        self.channel.close()
        self.secure.close()


@pytest.fixture
def head() -> Iterator[Head]:
    head = Head()
    head.start()
    yield head
    head.close()


class Gate:
    """Holds the engine inside a batch until it is let go."""

    def __init__(self, worker: SliceWorker) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        worker._engine._fails = self._wait  # type: ignore[attr-defined]

    def _wait(self, chunks: object) -> bool:
        self.entered.set()
        assert self.go_on.wait(DEADLINE_S)
        return False


def test_a_step_is_computed_answered_and_reported(head: Head) -> None:
    head.send_step()
    result = head.hear(Result)
    assert isinstance(result, Result)
    assert [(o.start, o.stop, o.token is None) for o in result.outputs] == [(0, 2, False)]
    report = head.hear(StageReport)
    assert isinstance(report, StageReport)
    assert (report.step_id, report.held) == (1, ((1, 2),))


def test_while_it_computes_it_still_hears_and_answers(head: Head) -> None:
    gate = Gate(head.worker)
    head.send_step()
    assert gate.entered.wait(DEADLINE_S)
    assert head.hear(Received) == Received(1, 1, ME)
    head.send_step(2, step_id=2)
    head.channel.send(ME, Close((77,)))
    assert head.hear(Closed) == Closed((77,), ME)
    with closing(Pinger(head.secure)) as pinger:
        pinger.watch(head.info())
        pong = head.ping(pinger)
        assert (pong.computing_step, pong.last_step_received, pong.sessions, pong.epoch) == (1, 2, 1, 1)
        gate.go_on.set()
        head.hear(Result)
        head.hear(Result)
        # The result leaves before the worker looks for what is next.
        head.wait_until(lambda: head.ping(pinger).computing_step is None)
        assert head.ping(pinger).progress > pong.progress


def test_what_was_computed_goes_out_at_once_and_not_at_the_next_tick(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_worker, "TICK_S", 60.0)
    gate = Gate(head.worker)
    head.send_step()
    assert gate.entered.wait(DEADLINE_S)
    ticked = threading.Event()  # the next wait for messages is one of the long ones
    monkeypatch.setattr(head.worker, "_check_lease", lambda now_s: ticked.set())
    assert ticked.wait(DEADLINE_S)
    gate.go_on.set()
    head.hear(Result)


def test_garbage_does_not_end_it(head: Head) -> None:
    endpoint = head.listening.endpoint
    with head.secure.client_socket(zmq.PUSH, endpoint.public_key) as rogue:
        rogue.connect(zmq_address(endpoint.address, endpoint.port))
        for frames in ([b"\x93\xa6closed\x90\xa1\xff"], [b"x" * 100], [b""] * 9, [b"\x91" * 50_000]):
            rogue.send_multipart(frames)
        head.wait_until(lambda: head.worker._channel.bad_messages == 4)
    head.send_step()
    head.hear(Result)
    assert head.exits == []


def test_without_a_word_from_the_head_its_lease_ends() -> None:
    head = Head(lease_s=0.3)
    head.start()
    try:
        head.wait_until(lambda: bool(head.exits))
        assert set(head.exits) == {EXIT_LEASE_ENDED}
    finally:
        head.close()


def test_a_machine_that_slept_does_not_hold_the_silence_against_the_head(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = JumpingClock()
    monkeypatch.setattr(slice_worker, "time", clock)
    checked: queue.SimpleQueue[float] = queue.SimpleQueue()
    check_lease = head.worker._check_lease

    def check(awake_s: float) -> None:
        check_lease(awake_s)
        checked.put(awake_s)

    monkeypatch.setattr(head.worker, "_check_lease", check)
    checked.get(timeout=DEADLINE_S)
    clock.jump(3600.0)
    for _ in range(3):
        checked.get(timeout=DEADLINE_S)
    assert head.exits == []


@pytest.mark.parametrize("renewed_by", ["heartbeat", "call", "ping"])
def test_a_word_from_the_head_renews_the_lease(renewed_by: str) -> None:
    head = Head(lease_s=30.0)
    head.start()
    try:
        long_ago_s = head.worker._heard_s = head.worker._heard_s - 10.0
        if renewed_by == "call":
            head.worker.renew_lease()
        elif renewed_by == "ping":  # all that is heard before there is a route
            head.worker._pong(1)
        else:
            head.channel.send(ME, Live(1, 0, ()))
        head.wait_until(lambda: head.worker._heard_s > long_ago_s)
    finally:
        head.close()
    assert head.exits == []


def test_a_worker_whose_thread_dies_of_a_bug_does_not_look_alive(
    head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(chunks: object) -> bool:
        raise TypeError("a bug")

    head.worker._engine._fails = breaks  # type: ignore[attr-defined]
    head.send_step()
    head.wait_until(lambda: bool(head.exits))
    assert head.exits == [EXIT_BROKEN]
    assert "a bug" in caplog.text


def test_new_peers_are_in_force_when_they_are_confirmed(head: Head) -> None:
    head.send_peers(7, WorkerId("w9"))
    assert (head.worker._core.epoch, head.worker._core.predecessor) == (7, "w9")
    head.send_step()  # of epoch 1
    head.channel.send(ME, Close((1,)))
    head.hear(Closed)
    assert head._heard == []


def test_who_confirms_its_peers_lets_them_in_and_reaches_them(head: Head) -> None:
    with closing(SecureContext()) as secure, closing(Channel(secure, "127.0.0.1")) as other:
        other.set_peers({ME: head.listening.endpoint})
        head.send_peers(7, W9, {W9: other.endpoint})
        other.send(ME, Open(1, 0, 2, 50, SamplingParams()))
        other.send(ME, Pull(7, 1, 0, 0, 2, "w2"))
        give_up_s = time.monotonic() + DEADLINE_S
        came: list[Message] = []
        while not came:
            assert time.monotonic() < give_up_s, "nothing comes from it"
            came = [arrival.message for arrival in other.receive(0.1)]
    assert came == [Pull(7, 1, 0, 0, 2, ME)]


def test_peers_of_an_older_epoch_change_nothing(head: Head) -> None:
    head.send_peers(7)
    driver = head.channel.endpoint
    peer = Peer(DRIVER, driver.address, driver.port, driver.public_key)
    head.channel.send(ME, Peers(6, (peer,), W9, ()))
    head.channel.send(ME, Close((1,)))
    head.hear(Closed)
    assert head._heard == []
    assert (head.worker._core.epoch, head.worker._core.predecessor) == (7, DRIVER)


def test_stop_ends_its_threads_and_may_be_called_again(head: Head) -> None:
    head.worker.stop()
    head.worker.stop()
    assert [thread for thread in threading.enumerate() if thread.name in ("shoal-io", "shoal-compute")] == []


def test_stop_before_start_does_nothing() -> None:
    head = Head()
    head.worker.stop()
    head.close()
