"""Percentiles and means of what was measured, plain or weighted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Spread:
    """Of `count` values. All 0 where there is none: see count."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float


def spread(values: Sequence[float] | NDArray[np.float64]) -> Spread:
    """By the nearest rank: the p-th percentile is a value that occurred."""
    if not len(values):
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    found = np.sort(np.asarray(values, np.float64))
    p50, p90, p99 = (float(found[max(0, int(np.ceil(p * len(found))) - 1)]) for p in (0.5, 0.9, 0.99))
    return Spread(len(found), float(found.mean()), p50, p90, p99, float(found[-1]))


def weighted_spread(values: NDArray[np.float64], weights: NDArray[np.float64]) -> Spread:
    """Each value as often as its weight says; count is the sum of weights, rounded."""
    used = weights > 0
    values, weights = values[used], weights[used]
    total = float(weights.sum())
    if total == 0:
        return spread(())
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    p50, p90, p99 = (float(values[np.searchsorted(reached, p * total)]) for p in (0.5, 0.9, 0.99))
    mean = float((values * weights[order]).sum() / total)
    return Spread(round(total), mean, p50, p90, p99, float(values[-1]))
