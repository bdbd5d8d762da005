"""The table of the benchmarks: medians of pairs, and ratios that are better above 1."""

from __future__ import annotations

from typing import Any

from benchmarks.report import table


def pair(shoal: float, undivided: float, foreign: float = 0.0) -> dict[str, Any]:
    return {
        "figures": {"undivided": undivided, "shoal": shoal},
        "cpu_s": {"undivided": 2.0, "shoal": 3.0},
        "foreign_share": foreign,
    }


def row_of(name: str, *pairs: dict[str, Any]) -> list[str]:
    results = {
        "machine": "2 cores", "model": "m", "layers": ["[0, 2)"], "worker_rss_bytes": [2**20],
        "first_start_s": 9.0, "second_start_s": 4.0, "scenarios": {name: list(pairs)},
    }  # fmt: skip
    line = next(line for line in table(results).splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    row = row_of("decode, tok/s", pair(10, 20), pair(30, 30), pair(20, 10))
    assert row[1:4] == ["20.00", "20.00", "1.00"]


def test_where_less_is_better_the_ratio_is_turned_over() -> None:
    assert row_of("first token, s", pair(2.0, 1.0))[3] == "0.50"


def test_what_others_used_is_said() -> None:
    assert row_of("decode, tok/s", pair(1, 1, 0.01), pair(1, 1, 0.3))[-1] == "1% to 30%"


def test_cpu_time_is_compared_too() -> None:
    assert row_of("decode, tok/s", pair(1, 1))[4] == "1.50"
