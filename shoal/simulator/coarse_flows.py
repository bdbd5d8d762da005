"""Everything that a coarse run only adds up: requests, tokens, busy time, and times in bins."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.simulator.coarse_cells import Floats, Ints
from shoal.simulator.records import TimePoint
from shoal.simulator.spread import Spread, weighted_spread

LEAST_DECADE: Final = -4
BINS_A_DECADE: Final = 200  # so 1.2 % wide
BINS: Final = np.logspace(LEAST_DECADE, 6, 10 * BINS_A_DECADE + 1)  # seconds
_MIDDLES: Final = np.concatenate([BINS[:1], np.sqrt(BINS[1:] * BINS[:-1]), BINS[-1:]])


def spread_of_bins(weights: Floats) -> Spread:
    """Of times that were counted in BINS."""
    return weighted_spread(_MIDDLES, weights)


def _bin_of(seconds: Floats) -> Ints:
    """As np.searchsorted(BINS, seconds), but by arithmetic: it is asked at every step."""
    place = (np.log10(np.maximum(seconds, BINS[0])) - LEAST_DECADE) * BINS_A_DECADE
    found: Ints = np.minimum(np.ceil(place - 1e-9).astype(np.int64), len(BINS))
    return found


class CoarseFlows:
    """Everything that is only added up."""

    def __init__(self) -> None:
        self.arrived = self.answered = self.refused = 0
        self.tokens = self.tokens_noted = 0.0
        self.lost_noted = 0
        self.busy_s = self.link_s = 0.0
        self.first_s = np.zeros(len(BINS) + 1)
        self.token_s = np.zeros(len(BINS) + 1)
        self.timeline: list[TimePoint] = []

    def note_first(self, seconds: Floats, weights: NDArray[np.generic]) -> None:
        self.first_s += np.bincount(_bin_of(seconds), weights, len(BINS) + 1)

    def note_token(self, seconds: Floats, weights: NDArray[np.generic]) -> None:
        self.token_s += np.bincount(_bin_of(seconds), weights, len(BINS) + 1)
