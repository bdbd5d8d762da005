"""The driver's thread and its sockets: whoever waits for it gets an answer, whatever it dies of."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from shoal.core.config import DriverConfig
from shoal.core.errors import ClusterError, NotReady
from shoal.core.placement import Endpoint, Epoch, NodeId, Placement, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.interface import EngineLimits
from shoal.pipeline.driver import Driver
from shoal.wire.messages import PeersTaken, Refused
from tests.support.digest_reference import NumberVocabulary
from tests.support.processes import wait_until
from tests.unit.pipeline.one_driver import N_CTX, request

DEADLINE_S = 10.0
W0 = WorkerId("w0")
LIMITS = EngineLimits(
    cells=1000, max_sequences=4, max_batch_tokens=64, row_width_in=4, row_width_out=4, mixes_chunks=True,
    can_trim=True, state_bytes=0,
)  # fmt: skip


@pytest.fixture
def driver() -> Iterator[Driver]:
    """It runs, and sends steps to a worker that nobody plays."""
    driver = Driver(DriverConfig(), NumberVocabulary(), N_CTX)
    driver.start()
    endpoint = Endpoint("127.0.0.1", 1, driver.secure.public_key)
    stage = WorkerInfo(W0, NodeId("n0"), LayerRange(0, 2), endpoint, 2, 3)
    driver.set_placement(Placement(Epoch(1), (stage,)), {W0: LIMITS}, 1 << 20)
    _receive(driver, PeersTaken(1, W0))
    yield driver
    driver.stop()


def _receive(driver: Driver, message: PeersTaken | Refused) -> None:
    driver._post(lambda: driver._core.receive(message, time.monotonic()))


async def _ask(driver: Driver) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for _ in driver.generate(request()):
            pass


def _fails(*args: object) -> None:
    raise ZeroDivisionError("a bug")


def test_a_request_whose_call_hits_a_bug_ends_with_an_error(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver._core.submit_choices = _fails  # type: ignore[assignment, method-assign]
    with pytest.raises(ClusterError, match="driver failed"):
        asyncio.run(_ask(driver))
    wait_until(lambda: "died of a bug" in caplog.text, deadline_s=5, what="its thread to say so")


def test_readers_end_with_an_error_though_the_bug_struck_while_they_were_being_answered(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def journey() -> None:
        task = asyncio.ensure_future(_ask(driver))
        while not (sessions := await asyncio.wrap_future(driver._call(lambda: list(driver._core._sessions)))):
            assert not task.done()
        # The answer's end and the closes that it brings leave in one batch of actions.
        monkeypatch.setattr(driver._channel, "send", _fails)
        _receive(driver, Refused(sessions[0], W0, "it is bad"))
        with pytest.raises(ClusterError, match="driver failed"):
            await task

    asyncio.run(journey())


def test_after_a_bug_stop_still_closes_the_sockets(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        driver._post(lambda: _fails())
        driver._thread.join(DEADLINE_S)
    driver.stop()
    driver.stop()
    assert driver._channel._inbound.closed
    assert driver.secure.context.closed


def test_a_call_is_answered_though_the_thread_has_ended_its_loop_and_refused_after_that() -> None:
    driver = Driver(DriverConfig(), NumberVocabulary(), N_CTX)
    has_ended, may_go = threading.Event(), threading.Event()
    loop = driver._loop

    def loop_and_wait() -> None:
        loop()
        has_ended.set()
        assert may_go.wait(DEADLINE_S)

    driver._loop = loop_and_wait  # type: ignore[method-assign]
    driver.start()
    driver._post(driver._stopping.set)
    assert has_ended.wait(DEADLINE_S)
    late = driver._call(lambda: 1)
    may_go.set()
    assert late.result(DEADLINE_S) == 1
    driver._thread.join(DEADLINE_S)
    with pytest.raises(NotReady, match="not running"):
        driver._call(lambda: 1).result(DEADLINE_S)
    driver.stop()
