"""A quantity without its unit cannot get in, and no unit is mistaken for another."""

from __future__ import annotations

import pytest

from shoal.core.errors import ConfigError
from shoal.core.units import (
    UNITS,
    Dimension,
    bytes_text,
    count_text,
    ops_text,
    parse,
    rate_text,
    seconds_text,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("256 MiB", Dimension.BYTES, 268_435_456),
        ("256 MB", Dimension.BYTES, 256_000_000),
        ("24GiB", Dimension.BYTES, 25_769_803_776),
        ("25.6 GB/s", Dimension.BYTES_PER_S, 25.6e9),
        ("0.94 Gb/s", Dimension.BYTES_PER_S, 117.5e6),
        ("153.6 GFLOPS", Dimension.OPS_PER_S, 153.6e9),
        ("300 us", Dimension.SECONDS, 300e-6),
        ("50_677 h", Dimension.SECONDS, 182_437_200),
        ("0.12 USD/kWh", Dimension.USD_PER_KWH, 0.12),
        ("81 %", Dimension.SHARE, 0.81),
        ("1e3 W", Dimension.WATTS, 1000),
    ],
)
def test_a_quantity_becomes_its_base_unit(text: str, dimension: Dimension, value: float) -> None:
    assert parse(text, dimension, what="value") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("value", [256, 2.5, "256", "0", ""])
def test_a_number_without_a_unit_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="memory of mybox"):
        parse(value, Dimension.BYTES, what="memory of mybox")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-1 GiB", "0 or more"),
        ("1e999 GiB", "finite"),
        ("nan GiB", "number with a unit"),
        ("25.6 GB/s", "measures bytes per s, not bytes"),
        ("256 mib", "did you mean MiB"),
        ("256 Gibibytes", "no unit"),
        (True, "not a quantity"),
        (None, "not a quantity"),
    ],
)
def test_what_is_no_memory_is_refused_with_its_reason(text: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text, Dimension.BYTES, what="memory")


def test_a_bit_is_never_taken_for_a_byte() -> None:
    rates = UNITS[Dimension.BYTES_PER_S]
    assert all(rates[f"{prefix}B/s"] == 8 * rates[f"{prefix}b/s"] for prefix in ("", "k", "M", "G", "T"))


def test_no_unit_belongs_to_two_dimensions() -> None:
    names = [unit for units in UNITS.values() for unit in units]
    assert len(names) == len(set(names))


def test_texts_for_people_round_once_and_keep_the_unit() -> None:
    assert bytes_text(100_000 * 2**28) == "24.41 TiB"
    assert rate_text(100_000 * 25.6e9) == "2.56 PB/s"
    assert ops_text(100_000 * 153.6e9) == "15.36 PFLOPS"
    assert count_text(104.187e9) == "104.19 B"
    assert seconds_text(0.01048576) == "10.5 ms"
    assert seconds_text(90_000) == "25.0 h"
    assert bytes_text(12) == "12 B"
