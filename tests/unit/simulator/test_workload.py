"""Arrivals and lengths: rates as stated, patterns as described, traces read strictly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import ConfigError
from shoal.core.units import DAY_S, HOUR_S
from shoal.simulator.lengths import Fixed, Geometric, Lengths, LogNormal, Uniform
from shoal.simulator.workload import Bursts, Closed, Poisson, Workload, read_trace


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize(
    "lengths",
    [Fixed(7), Uniform(2, 90), Geometric(40, 100), LogNormal(100, 1.0, 400), LogNormal(50, 2.0, 90)],
)
def test_lengths_have_the_mean_that_they_state_and_keep_their_bounds(lengths: Lengths) -> None:
    generator = rng()
    drawn = [lengths.draw(generator) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(lengths.mean, rel=0.02)
    assert min(drawn) >= 1
    assert max(drawn) <= lengths.most


def test_poisson_arrivals_come_at_their_rate_with_exponential_gaps() -> None:
    times = np.array([*Poisson(2.0).times(10_000.0, rng())])
    gaps = np.diff(times)
    assert len(times) == pytest.approx(20_000, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert times[-1] < 10_000


def test_a_day_profile_moves_the_rate_hour_by_hour() -> None:
    profile = tuple(2.0 if hour < 12 else 0.5 for hour in range(24))
    times = np.array([*Poisson(0.5, profile).times(DAY_S, rng())])
    morning = int((times < 12 * HOUR_S).sum())
    assert morning == pytest.approx(0.5 * 2.0 * 12 * HOUR_S, rel=0.03)
    assert len(times) - morning == pytest.approx(0.5 * 0.5 * 12 * HOUR_S, rel=0.05)


def test_bursts_have_the_mean_rate_of_both_states_and_more_spread_than_poisson() -> None:
    bursts = Bursts(calm_per_s=0.2, burst_per_s=5.0, calm_s=60.0, burst_s=20.0)
    times = np.array([*bursts.times(200_000.0, rng())])
    assert len(times) / 200_000 == pytest.approx(bursts.rate_per_s(0.0), rel=0.05)
    counts = np.histogram(times, bins=2000)[0]
    assert counts.var() > 5 * counts.mean()


def test_closed_users_ask_once_at_the_start() -> None:
    arrivals = [*Workload(Closed(5), Fixed(3), Fixed(4)).arrivals(60.0, rng())]
    assert [arrival.at_s for arrival in arrivals] == [0.0] * 5


def test_a_trace_gives_its_requests_up_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at_s,prompt_tokens,output_tokens\n0.5,10,20\n3,30,40\n9,1,1\n")
    workload = Workload(read_trace(path), Fixed(1), Fixed(1))
    assert [tuple(arrival) for arrival in workload.arrivals(5.0, rng())] == [(0.5, 10, 20), (3.0, 30, 40)]
    assert workload.longest_tokens == 70


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("when,prompt_tokens,output_tokens\n", "has the columns when"),
        ("at_s,prompt_tokens,output_tokens\n", "holds no request"),
        ("at_s,prompt_tokens,output_tokens\n1,2,x\n", "line 2"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\n1,0,3\n", "line 3"),
        ("at_s,prompt_tokens,output_tokens\n1,2,3\n0.5,2,3\n", "line 3, is earlier"),
        ("at_s,prompt_tokens,output_tokens\n-1,2,3\n", "0 or more"),
    ],
)
def test_a_bad_trace_is_refused_with_file_and_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        read_trace(path)
    assert "trace.csv" in str(error.value)


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
