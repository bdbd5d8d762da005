"""How long prompts and answers are, in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    @property
    def mean(self) -> float:
        return float(self.tokens)

    @property
    def most(self) -> int:
        return self.tokens

    def draw(self, rng: np.random.Generator) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `least` to `most` equally often."""

    least: int
    most: int

    @property
    def mean(self) -> float:
        return (self.least + self.most) / 2

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.least, self.most + 1))


@dataclass(frozen=True, slots=True)
class Geometric:
    """No memory: the discrete form of the exponential. Longer ones than `most` are cut there."""

    mean_tokens: float
    most: int

    @property
    def mean(self) -> float:
        """Of the cut distribution: m * (1 - (1 - 1/m) ** most)."""
        return self.mean_tokens * (1 - (1 - 1 / self.mean_tokens) ** self.most)

    def draw(self, rng: np.random.Generator) -> int:
        return min(self.most, int(rng.geometric(1 / self.mean_tokens)))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half are shorter than `median`, a few much longer; from 1 to `most`. sigma: of the logarithm."""

    median: float
    sigma: float
    most: int

    @property
    def mean(self) -> float:
        """Of the cut distribution: m * e^(s²/2) * Phi(z - s) + most * (1 - Phi(z)), z = ln(most/m)/s."""
        z = math.log(self.most / self.median) / self.sigma
        inside = self.median * math.exp(self.sigma**2 / 2) * _normal_below(z - self.sigma)
        return inside + self.most * (1 - _normal_below(z))

    def draw(self, rng: np.random.Generator) -> int:
        drawn = rng.lognormal(math.log(self.median), self.sigma)
        return max(1, min(self.most, round(drawn)))


Lengths = Fixed | Uniform | Geometric | LogNormal


def _normal_below(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
