"""Requests that come in one step of the coarse mode, by gateway."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shoal.simulator.scenario import Scenario
from shoal.simulator.workload import Bursts, Closed, Poisson, Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class CoarseArrivals:
    """shares: of each gateway in all arrivals."""

    def __init__(self, scenario: Scenario, shares: Floats, rng: np.random.Generator) -> None:
        self._pattern = scenario.workload.pattern
        self._shares = shares
        self._rng = rng
        self._burst_until_s = 0.0
        self._in_burst = True  # so that the first switch makes it calm
        self._recorded = np.zeros(0)
        if isinstance(self._pattern, Trace):
            self._recorded = np.array([arrival.at_s for arrival in self._pattern.arrivals])

    def come(self, now_s: float, step_s: float, present: Callable[[], Ints]) -> Ints:
        """In `[now_s, now_s + step_s)`. present: requests at each gateway and its cells, for closed users."""
        match self._pattern:
            case Poisson():
                return self._rng.poisson(self._pattern.rate_per_s(now_s) * step_s * self._shares)
            case Bursts():
                return self._rng.poisson(self._burst_rate(self._pattern, now_s) * step_s * self._shares)
            case Trace():
                first, last = np.searchsorted(self._recorded, (now_s, now_s + step_s))
                return self._rng.multinomial(int(last - first), self._shares)
            case Closed():
                return self._closed(self._pattern, step_s, present())

    def _burst_rate(self, pattern: Bursts, now_s: float) -> float:
        while now_s >= self._burst_until_s:
            self._in_burst = not self._in_burst
            mean_s = pattern.burst_s if self._in_burst else pattern.calm_s
            self._burst_until_s += self._rng.exponential(mean_s)
        return pattern.burst_per_s if self._in_burst else pattern.calm_per_s

    def _closed(self, pattern: Closed, step_s: float, present: Ints) -> Ints:
        users = np.floor(pattern.users * np.cumsum(self._shares) + 1e-6)
        idle: Ints = np.maximum(0, np.diff(users, prepend=0.0).astype(np.int64) - present)
        if not pattern.think_s:
            return idle
        return self._rng.binomial(idle, -np.expm1(-step_s / pattern.think_s))
