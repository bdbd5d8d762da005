"""Quantities with units: the one place where a unit becomes a number, and a number a text.

Inside the program every figure is in a base unit that its name says: `_bytes`, `_bytes_per_s`, `_s`,
`_ops_per_s`, `_w`, `_usd`. What people write is a text with a unit ("256 MiB", "25.6 GB/s"), and
`parse` turns it into the base unit of the dimension that is wanted. A number without a unit, a
unit of another dimension, a negative or unbounded number are refused. Spelling counts: GB is 10^9
bytes, GiB is 2^30 bytes, Gb is 10^9 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType
from typing import Final

from shoal.core.errors import ConfigError

BITS_PER_BYTE: Final = 8

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TIB: Final = 2**40

KILO: Final = 10**3
MEGA: Final = 10**6
GIGA: Final = 10**9
TERA: Final = 10**12
PETA: Final = 10**15

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
YEAR_S: Final = 365.25 * DAY_S

JOULES_PER_KWH: Final = 1000 * HOUR_S


class Dimension(Enum):
    """What a quantity measures. The value is the base unit, as `parse` returns it."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    OPS_PER_S = "operations/s"
    SECONDS = "s"
    WATTS = "W"
    USD = "USD"
    USD_PER_HOUR = "USD/h"
    USD_PER_KWH = "USD/kWh"
    SHARE = "a share of 1"
    TOKENS_PER_S = "tok/s"
    PER_DAY = "a day"
    REQUESTS_PER_S = "req/s"


def _prefixed(suffix: str, scale: float, prefixes: str) -> dict[str, float]:
    powers = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
    return {f"{prefix}{suffix}": scale * 1000.0 ** powers[prefix] for prefix in ["", *prefixes]}


_BYTE_UNITS: Final = _prefixed("B", 1, "kMGTP") | {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}

UNITS: Final[Mapping[Dimension, Mapping[str, float]]] = MappingProxyType(
    {
        Dimension.BYTES: _BYTE_UNITS,
        Dimension.BYTES_PER_S: {f"{unit}/s": scale for unit, scale in _BYTE_UNITS.items()}
        | _prefixed("b/s", 1 / BITS_PER_BYTE, "kMGT"),
        Dimension.OPS_PER_S: _prefixed("FLOPS", 1, "kMGTP") | _prefixed("OPS", 1, "kMGTP"),
        Dimension.SECONDS: {
            "us": 1e-6,
            "ms": 1e-3,
            "s": 1.0,
            "min": MINUTE_S,
            "h": HOUR_S,
            "d": DAY_S,
            "y": YEAR_S,
        },
        Dimension.WATTS: _prefixed("W", 1, "kMG"),
        Dimension.USD: {"USD": 1.0},
        Dimension.USD_PER_HOUR: {"USD/h": 1.0},
        Dimension.USD_PER_KWH: {"USD/kWh": 1.0},
        Dimension.SHARE: {"%": 0.01},
        Dimension.TOKENS_PER_S: {"tok/s": 1.0, "tok/min": 1 / MINUTE_S},
        Dimension.PER_DAY: {"/d": 1.0, "/h": 24.0},
        Dimension.REQUESTS_PER_S: {"req/s": 1.0, "req/min": 1 / MINUTE_S, "req/h": 1 / HOUR_S},
    }
)

_QUANTITY: Final = re.compile(r"\s*([-+]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*")


def parse(value: object, dimension: Dimension, *, what: str) -> float:
    """`value`, a text such as "25.6 GB/s", in the base unit of `dimension`.

    what: names the value in an error ("memory of ps3 in machines/consoles.toml").
    Raises ConfigError for a missing or unknown unit, another dimension, or a number below 0.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _error(what, f"is {value!r}, not a quantity", dimension)
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise _error(what, f"is {value!r}, not a number with a unit", dimension)
    number, unit = float(match.group(1).replace("_", "")), match.group(2)
    if not unit:
        raise _error(what, f"is {value!r}, without a unit", dimension)
    scale = UNITS[dimension].get(unit)
    if scale is None:
        raise _error(what, f"is {value!r}, and {_misfit(unit, dimension)}", dimension)
    if number < 0 or not math.isfinite(number * scale):
        raise _error(what, f"is {value!r}; it must be 0 or more, and finite", dimension)
    return number * scale


def _misfit(unit: str, wanted: Dimension) -> str:
    for dimension, units in UNITS.items():
        if unit in units:
            return f"{unit} measures {dimension.name.lower().replace('_', ' ')}, not " + (
                wanted.name.lower().replace("_", " ")
            )
    near = [known for known in UNITS[wanted] if known.lower() == unit.lower()]
    near = near or get_close_matches(unit, UNITS[wanted], n=1, cutoff=0.4)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"{unit} is no unit{hint}"


def _error(what: str, problem: str, dimension: Dimension) -> ConfigError:
    return ConfigError(
        f"The {what} {problem}.", next_step=f"Units that fit: {', '.join(filter(None, UNITS[dimension]))}."
    )


# ---------------------------------------------------------------- for people


def bytes_text(num_bytes: float) -> str:
    """Binary units, for what fills memory: "24.41 TiB"."""
    return _scaled(num_bytes, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def traffic_text(num_bytes: float) -> str:
    """Decimal units, for what moves: "137.0 GB"."""
    return _scaled(num_bytes, 1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))


def rate_text(bytes_per_s: float) -> str:
    """Decimal units: "2.56 PB/s"."""
    return traffic_text(bytes_per_s) + "/s"


def ops_text(ops_per_s: float) -> str:
    """ "15.36 PFLOPS"."""
    return _scaled(ops_per_s, 1000.0, ("FLOPS", "kFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS", "EFLOPS"))


def power_text(watts: float) -> str:
    return _scaled(watts, 1000.0, ("W", "kW", "MW", "GW"))


def seconds_text(seconds: float) -> str:
    """From microseconds to years, three digits."""
    steps = ((YEAR_S, "years"), (DAY_S, "days"), (HOUR_S, "h"), (MINUTE_S, "min"), (1.0, "s"), (1e-3, "ms"))
    for scale, unit in steps:
        if seconds >= scale * (2 if scale > 1 else 1):
            return f"{digits_text(seconds / scale)} {unit}"
    return f"{digits_text(seconds / 1e-6)} us"


def usd_text(usd: float) -> str:
    return f"${usd:,.0f}" if usd >= 1000 else f"${digits_text(usd)}"


def count_text(number: float) -> str:
    """Parameters and the like: "104.19 B", "7 B"."""
    for scale, unit in ((TERA, " T"), (GIGA, " B"), (MEGA, " M")):
        if number >= scale and scale != TERA:
            return f"{number / scale:,.2f}{unit}"
    return f"{number:,.0f}"


def digits_text(number: float) -> str:
    """Three significant digits, thousands separated, no exponent."""
    if number == 0 or not math.isfinite(number):
        return f"{number:.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:,.{decimals}f}"


def _scaled(number: float, step: float, units: tuple[str, ...]) -> str:
    index = 0
    while abs(number) >= step and index < len(units) - 1:
        number /= step
        index += 1
    return f"{number:.0f} {units[0]}" if index == 0 else f"{number:.2f} {units[index]}"
