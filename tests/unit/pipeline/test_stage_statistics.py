"""Figures of the last steps."""

from __future__ import annotations

import pytest

from shoal.pipeline.stage_statistics import StageStatistics
from shoal.wire.messages import StageReport


def test_before_any_report_there_are_no_figures() -> None:
    statistics = StageStatistics()
    assert (statistics.compute_ms("w0"), statistics.queue_ms("w0"), statistics.num_steps("w0")) == (
        None,
        None,
        0,
    )
    assert statistics.round_trip_s(is_prefill=True) == 0.0


def test_figures_are_medians_of_each_worker() -> None:
    statistics = StageStatistics()
    for number, seconds in enumerate((0.001, 0.002, 0.9)):
        statistics.add_report(StageReport(1, number, "w0", seconds / 2, seconds, ()), 1, is_prefill=False)
    statistics.add_report(StageReport(1, 1, "w1", 0.0, 5.0, ()), 1, is_prefill=False)
    assert (statistics.compute_ms("w0"), statistics.queue_ms("w0")) == (2.0, 1.0)
    assert (statistics.num_steps("w0"), statistics.num_steps("w1")) == (3, 1)


def test_old_steps_are_forgotten_but_counted() -> None:
    statistics = StageStatistics()
    for number in range(200):
        statistics.add_report(
            StageReport(1, number, "w0", 0.0, 1.0 if number < 136 else 2.0, ()), 1, is_prefill=False
        )
    assert (statistics.compute_ms("w0"), statistics.num_steps("w0")) == (2000.0, 200)


def test_round_trips_are_smoothed_by_kind() -> None:
    statistics = StageStatistics()
    statistics.add_round_trip(1.0, is_prefill=False)
    statistics.add_round_trip(2.0, is_prefill=False)
    statistics.add_round_trip(9.0, is_prefill=True)
    assert statistics.round_trip_s(is_prefill=False) == pytest.approx(1.2)
    assert statistics.round_trip_s(is_prefill=True) == 9.0


def _take(
    statistics: StageStatistics,
    worker: str,
    compute_s: float,
    *,
    tokens: int,
    steps: int = 8,
    is_prefill: bool = False,
) -> None:
    for number in range(steps):
        report = StageReport(1, number, worker, 0.0, compute_s, ())
        statistics.add_report(report, tokens, is_prefill=is_prefill)


def test_a_stage_is_slow_when_its_last_steps_take_far_longer_than_such_steps_took() -> None:
    statistics = StageStatistics()
    assert not statistics.is_slow("w0")
    _take(statistics, "w0", 0.01, tokens=1)
    assert not statistics.is_slow("w0")
    _take(statistics, "w0", 0.029, tokens=1)
    assert not statistics.is_slow("w0")
    _take(statistics, "w0", 0.031, tokens=1)
    assert statistics.is_slow("w0")
    assert not statistics.is_slow("w1")
    _take(statistics, "w0", 0.01, tokens=1)
    assert not statistics.is_slow("w0")


def test_one_long_step_does_not_make_a_stage_slow() -> None:
    statistics = StageStatistics()
    _take(statistics, "w0", 0.01, tokens=1)
    _take(statistics, "w0", 9.0, tokens=1, steps=3)
    assert not statistics.is_slow("w0")


def test_long_chunks_take_longer_without_being_slow() -> None:
    statistics = StageStatistics()
    _take(statistics, "w0", 0.01, tokens=1)
    _take(statistics, "w0", 1.0, tokens=128)
    assert not statistics.is_slow("w0")
    _take(statistics, "w0", 99.0, tokens=0)  # of steps that have returned, their size is not known
    assert not statistics.is_slow("w0")


def test_workers_that_have_left_are_forgotten_entirely() -> None:
    statistics = StageStatistics()
    for worker in ("w0", "w1"):
        _take(statistics, worker, 0.01, tokens=2, is_prefill=True)
        _take(statistics, worker, 1.0, tokens=2)
    before = statistics.replay_estimate(10, 0)
    statistics.keep_only(["w1", "w9"])
    assert (statistics.num_steps("w0"), statistics.compute_ms("w0"), statistics.queue_ms("w0")) == (
        0,
        None,
        None,
    )
    assert (statistics.is_slow("w0"), statistics.is_slow("w1")) == (False, True)
    assert statistics.num_steps("w1") == 16
    assert statistics.replay_estimate(10, 0) == before
    _take(statistics, "w0", 1.0, tokens=2)  # the same name again owes nothing to its past
    assert not statistics.is_slow("w0")
    statistics.keep_only([])
    assert statistics.replay_estimate(10, 0).pull_s == 0.0


def test_coming_back_costs_what_the_slowest_stage_takes_for_long_chunks() -> None:
    statistics = StageStatistics()
    _take(statistics, "w0", 0.1, tokens=10, is_prefill=True)
    _take(statistics, "w1", 0.4, tokens=10, is_prefill=True)
    _take(statistics, "w1", 5.0, tokens=1)  # a token alone says nothing about chunks
    statistics.add_round_trip(0.25, is_prefill=False)
    estimate = statistics.replay_estimate(100, 0)
    assert (estimate.step_s, estimate.pull_s) == (0.25, pytest.approx(4.0))


def test_a_pull_of_a_prompt_is_foreseen_from_prompts_and_that_of_a_lone_answer_from_its_steps() -> None:
    statistics = StageStatistics()
    statistics.add_report(StageReport(1, 1, "w0", 0.0, 1.0, ()), 100, is_prefill=True)
    statistics.add_report(StageReport(1, 2, "w0", 0.0, 0.5, ()), 4, is_prefill=False)  # four answers' tokens
    statistics.add_report(StageReport(1, 3, "w1", 0.0, 0.1, ()), 100, is_prefill=True)
    assert statistics.replay_estimate(200, 0).pull_s == pytest.approx(2.0)
    assert statistics.replay_estimate(200, 6).pull_s == pytest.approx(2.0 + 3.0)
    assert StageStatistics().replay_estimate(200, 6).pull_s == 0.0
