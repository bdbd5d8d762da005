"""What a soak run judges to be a problem."""

from __future__ import annotations

import argparse
from typing import cast

import pytest

from benchmarks.servers import ShoalServe
from benchmarks.soak import ENOUGH_LATENCIES, Log, Soak

MIB = 2**20


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Soak:
    """After 100 s."""
    made = Soak(cast(ShoalServe, None), argparse.Namespace(seed=1, minutes=1))
    monkeypatch.setattr(Log, "now_s", lambda log: 100.0)
    return made


def problems(soak: Soak) -> list[str]:
    soak.judge()
    return soak.log.problems


def test_flat_memory_is_no_problem_however_much_it_is(soak: Soak) -> None:
    soak.log.memory = [(float(at), "head 1", 0, 900 * MIB + at % 3 * MIB) for at in range(100)]
    assert problems(soak) == []


def test_memory_that_grows_to_the_end_is_named(soak: Soak) -> None:
    soak.log.memory = [(float(at), "worker 0-9 7", 0, (300 + at) * MIB) for at in range(100)]
    (problem,) = problems(soak)
    assert "worker 0-9 7 grew" in problem


def test_memory_that_grows_only_while_it_warms_up_is_no_problem(soak: Soak) -> None:
    soak.log.memory = [(float(at), "head 1", 0, min(at, 50) * 10 * MIB) for at in range(100)]
    assert problems(soak) == []


@pytest.mark.parametrize(("slow_s", "num_problems"), [(1.5, 0), (2.5, 1)])
def test_requests_may_not_become_much_slower(soak: Soak, slow_s: float, num_problems: int) -> None:
    early = [(10.0, 1.0)] * ENOUGH_LATENCIES
    soak.log.latencies_s = early + [(90.0, slow_s)] * ENOUGH_LATENCIES
    assert len(problems(soak)) == num_problems


def test_a_few_slow_requests_say_nothing(soak: Soak) -> None:
    soak.log.latencies_s = [(10.0, 1.0), (90.0, 9.0)]
    assert problems(soak) == []


def test_pages_of_a_mapped_file_are_no_growth(soak: Soak) -> None:
    soak.log.memory = [(float(at), "worker 0-9 7", (300 + at) * MIB, 300 * MIB) for at in range(100)]
    assert problems(soak) == []
