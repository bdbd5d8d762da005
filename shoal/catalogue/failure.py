"""How machines leave and come back: time-to-failure and repair distributions, day and week profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.catalogue.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Exponential:
    """No memory: the chance to end in the next second is always the same."""

    mean_s: float

    def survival(self, age_s: float) -> float:
        """P(lasts longer than age_s)."""
        return math.exp(-age_s / self.mean_s)


@dataclass(frozen=True, slots=True)
class Weibull:
    """survival(t) = exp(-(t / scale_s) ** shape). shape < 1: who is up long stays longer."""

    shape: float
    scale_s: float

    @property
    def mean_s(self) -> float:
        return self.scale_s * math.gamma(1 + 1 / self.shape)

    @property
    def median_s(self) -> float:
        return self.quantile_s(0.5)

    def survival(self, age_s: float) -> float:
        """P(lasts longer than age_s)."""
        return math.exp(-((age_s / self.scale_s) ** self.shape))

    def quantile_s(self, share: float) -> float:
        """The time by which `share` of all have ended."""
        return self.scale_s * math.pow(-math.log1p(-share), 1 / self.shape)


@dataclass(frozen=True, slots=True)
class LemonMixture:
    """Most machines are sound, some are lemons that fail again and again: a machine is one or the
    other for good. lemon_share: of all machines."""

    lemon_share: float
    sound: Exponential
    lemon: Exponential

    @property
    def mean_s(self) -> float:
        """Of a machine drawn at random, to its next failure."""
        return self.lemon_share * self.lemon.mean_s + (1 - self.lemon_share) * self.sound.mean_s

    @property
    def failures_per_s(self) -> float:
        """Of a machine drawn at random, in the long run; more than 1 / mean_s."""
        return self.lemon_share / self.lemon.mean_s + (1 - self.lemon_share) / self.sound.mean_s

    def survival(self, age_s: float) -> float:
        """P(lasts longer than age_s)."""
        return self.lemon_share * self.lemon.survival(age_s) + (1 - self.lemon_share) * self.sound.survival(
            age_s
        )


Distribution = Exponential | Weibull | LemonMixture


@dataclass(frozen=True, slots=True)
class FailureModel:
    """How one population of machines behaves.

    uptime: from coming up to leaving. repair: from leaving to coming back. on_share: the share of
    time that a machine is there, where it was measured. day_profile: share of machines present in
    each hour of the day from midnight; week_profile: factor on it from Monday; None where flat.
    room_size: machines that share power and switch; room_loss: time between losses of a whole
    room; None where rooms are not modelled.
    """

    name: str
    title: str
    uptime: Distribution
    repair: Distribution
    on_share: float | None = None
    day_profile: tuple[float, ...] | None = None
    week_profile: tuple[float, ...] | None = None
    room_size: int | None = None
    room_loss: Exponential | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    @property
    def availability(self) -> float:
        """The measured share of time on, or mean uptime / (mean uptime + mean repair)."""
        if self.on_share is not None:
            return self.on_share
        return self.uptime.mean_s / (self.uptime.mean_s + self.repair.mean_s)
