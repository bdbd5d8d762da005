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
        statistics.add_report(StageReport(1, number, "w0", seconds / 2, seconds, ()), 1)
    statistics.add_report(StageReport(1, 1, "w1", 0.0, 5.0, ()), 1)
    assert (statistics.compute_ms("w0"), statistics.queue_ms("w0")) == (2.0, 1.0)
    assert (statistics.num_steps("w0"), statistics.num_steps("w1")) == (3, 1)


def test_old_steps_are_forgotten_but_counted() -> None:
    statistics = StageStatistics()
    for number in range(200):
        statistics.add_report(StageReport(1, number, "w0", 0.0, 1.0 if number < 136 else 2.0, ()), 1)
    assert (statistics.compute_ms("w0"), statistics.num_steps("w0")) == (2000.0, 200)


def test_round_trips_are_smoothed_by_kind() -> None:
    statistics = StageStatistics()
    statistics.add_round_trip(1.0, is_prefill=False)
    statistics.add_round_trip(2.0, is_prefill=False)
    statistics.add_round_trip(9.0, is_prefill=True)
    assert statistics.round_trip_s(is_prefill=False) == pytest.approx(1.2)
    assert statistics.round_trip_s(is_prefill=True) == 9.0
