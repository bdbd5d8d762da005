"""Hops that lose steps, and stages that keep them: what the driver notices from reports alone."""

from __future__ import annotations

import pytest

from shoal.core.config import DriverConfig
from shoal.core.placement import DRIVER, WorkerId
from shoal.pipeline.actions import LinkCut, StageSilent
from shoal.pipeline.admission import Capacity
from shoal.wire.messages import Received, StageReport, Step, Unanswered
from tests.unit.pipeline.one_driver import STAGES, OneDriver, placement, request

W0, W1, W2 = STAGES


def _driver(*, hop_s: float = 1.0, resend_s: float = 1000.0, row_bytes: int = 0) -> OneDriver:
    """row_bytes: a second a hundred bytes."""
    config = DriverConfig(
        chunk_tokens=8,
        resend_after_s=resend_s,
        max_resends=9,
        hop_deadline_s=hop_s,
        slowest_link_bytes_per_s=100.0,
    )
    return OneDriver(config, Capacity(cells=200, sequences=4, batch_tokens=16, row_bytes=row_bytes))


def _received(driver: OneDriver, step: Step, worker: str) -> None:
    driver.receive(Received(1, step.step_id, worker))


def _sent_on(driver: OneDriver, step: Step, worker: str) -> None:
    driver.receive(StageReport(1, step.step_id, worker, 0.0, 0.0, ()))


def test_a_link_is_cut_when_the_same_hop_has_lost_a_step_twice() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    driver.tick_at(0.9)
    assert driver.take(Step) == []
    driver.tick_at(1.0)
    assert [s.entries for s in driver.take(Step)] == [step.entries]
    assert driver.take_events() == []
    driver.tick_at(2.0)
    assert driver.take_events() == [LinkCut(DRIVER, W0)]


def test_the_hop_is_named_by_the_last_stage_that_received_it() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    for _ in range(2):
        assert driver.take_events() == []
        _received(driver, step, "w0")
        _sent_on(driver, step, "w0")
        driver.tick_at(driver.now_s + 1.0)
    assert driver.take_events() == [LinkCut(W0, W1)]


def test_a_result_that_never_comes_is_lost_behind_the_last_stage() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    for _ in range(2):
        assert driver.take_events() == []
        for worker in STAGES:
            _received(driver, step, worker)
            _sent_on(driver, step, worker)
        driver.tick_at(driver.now_s + 1.0)
    (cut,) = driver.take_events()
    assert cut == LinkCut(W2, DRIVER)
    assert isinstance(cut, LinkCut)
    assert cut.to_replace == W2


def test_a_report_says_too_that_the_step_was_received() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    driver.tick_at(0.9)
    _sent_on(driver, step, "w0")
    driver.tick_at(1.8)
    assert (driver.take(Step), driver.take_events()) == ([], [])
    driver.tick_at(1.9)  # lost behind w0
    _sent_on(driver, step, "w0")
    driver.tick_at(2.9)  # and again
    assert driver.take_events() == [LinkCut(W0, W1)]


def test_losses_on_different_hops_cut_no_link() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    driver.tick_at(1.0)  # lost on the way to w0
    for worker in ("w0", "w1"):
        _received(driver, step, worker)
        _sent_on(driver, step, worker)
    driver.tick_at(2.0)  # lost on the way to w2
    assert driver.take_events() == []


def test_a_step_that_arrives_at_its_second_try_clears_its_hop() -> None:
    driver = _driver(resend_s=10.0)
    driver.submit()
    (step,) = driver.take(Step)
    driver.tick_at(1.0)
    _received(driver, step, "w0")
    driver.tick_at(11.0)  # no result: it is sent once more, and that is lost on the same hop
    driver.tick_at(12.0)
    assert driver.take_events() == []
    driver.tick_at(13.0)
    assert driver.take_events() == [LinkCut(DRIVER, W0)]


def test_a_stage_may_take_its_time_once_it_has_a_step() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    driver.now_s = 0.5
    _received(driver, step, "w0")
    driver.tick_at(500.0)
    assert (driver.take(Step), driver.take_events()) == ([], [])


def test_a_report_that_the_next_stages_word_has_overtaken_starts_no_hop() -> None:
    driver = _driver()
    driver.submit()
    (step,) = driver.take(Step)
    _received(driver, step, "w0")
    _received(driver, step, "w1")
    _sent_on(driver, step, "w0")
    driver.tick_at(500.0)
    assert driver.take(Step) == []


@pytest.mark.parametrize(("prompt", "bytes_s"), [(4, 2.0), (8, 4.0)])
def test_a_larger_payload_has_longer(prompt: int, bytes_s: float) -> None:
    driver = _driver(row_bytes=50)
    driver.submit(request(prompt, 5))
    driver.take(Step)
    driver.tick_at(1.0 + bytes_s - 0.1)
    assert driver.take(Step) == []
    driver.tick_at(1.0 + bytes_s)
    assert len(driver.take(Step)) == 1


def test_a_new_route_forgets_what_the_old_one_lost() -> None:
    driver = _driver()
    driver.submit()
    driver.tick_at(1.0)
    driver.route_along(placement(2, ["w5", "w1", "w2"]))
    driver.tick_at(2.0)
    assert driver.take_events() == []


def test_a_stage_that_keeps_a_step_is_called_silent_at_its_second_deadline() -> None:
    driver = _driver(hop_s=1e6, resend_s=10.0)
    driver.submit()
    (step,) = driver.take(Step)
    _received(driver, step, "w0")
    _sent_on(driver, step, "w0")
    _received(driver, step, "w1")
    driver.tick_at(10.0)
    assert driver.take_events() == []
    assert len(driver.take(Step)) == 1
    _received(driver, step, "w0")
    _sent_on(driver, step, "w0")
    _received(driver, step, "w1")
    driver.tick_at(30.0)
    assert driver.take_events() == [StageSilent(WorkerId("w1"), step.step_id)]


def test_where_the_wire_has_the_step_no_stage_is_called_silent() -> None:
    driver = _driver(hop_s=1e6, resend_s=10.0)
    driver.submit()
    (step,) = driver.take(Step)
    for now_s in (10.0, 30.0):
        _received(driver, step, "w0")
        _sent_on(driver, step, "w0")
        driver.tick_at(now_s)
    assert driver.take_events() == []


def test_a_last_stage_is_judged_too_though_its_report_comes_behind_its_result() -> None:
    driver = _driver()
    driver.submit(request(max_tokens=40))
    (step,) = driver.take(Step)
    for number in range(20):
        driver.result(step, 5)
        driver.receive(StageReport(1, step.step_id, "w2", 0.0, 0.1 if number < 10 else 0.5, ()))
        (step,) = driver.take(Step)
    assert driver.core.statistics.is_slow(W2)


# ---------------------------------------------------------------- pulls


@pytest.mark.parametrize("asked", [DRIVER, W0])
def test_where_a_pull_is_not_heard_of_the_link_is_cut_and_no_stream_ends(asked: WorkerId) -> None:
    driver = _driver()
    session = driver.submit()
    driver.receive(Unanswered(1, W1, asked))
    assert driver.take_events() == [LinkCut(asked, W1)]
    assert driver.end(session) is None


def test_who_was_asked_and_is_lost_was_not_cut_off() -> None:
    driver = _driver()
    driver.lose(W0)
    driver.receive(Unanswered(1, W1, W0))
    assert driver.take_events() == []


def test_pulls_of_before_a_change_of_the_route_say_nothing_of_it() -> None:
    driver = _driver()
    driver.place(placement(2))
    driver.receive(Unanswered(1, W1, W0))
    assert driver.take_events() == []
