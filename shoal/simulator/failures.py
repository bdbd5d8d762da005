"""When machines are away: drawn from a failure model for any number of machines at once.

Each machine alternates between being there and being away. Rooms of machines go together, on top of that.
Vectorised over machines, so that the coarse mode draws a day of 100,000 machines in seconds; the
fine mode uses the same draws. Knows nothing of what the machines do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.catalogue.failure import Distribution, Exponential, FailureModel, LemonMixture, Weibull
from shoal.core.units import DAY_S, HOUR_S

Seconds = NDArray[np.float64]
Numbers = NDArray[np.int64]

PROFILE_STEP_S: Final = 60.0
DAYS_PER_WEEK: Final = 7


@dataclass(frozen=True, slots=True)
class Absences:
    """Times away, sorted by their start. machine: its number. since_s, until_s: half-open; until_s may lie
    beyond the end. is_room: the whole room went. A machine's own and its room's may overlap."""

    machine: Numbers
    since_s: Seconds
    until_s: Seconds
    is_room: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.machine)


def draw_absences(
    model: FailureModel,
    num_machines: int,
    duration_s: float,
    rng: np.random.Generator,
    *,
    all_present: bool = True,
    start_s: float = 0.0,
) -> Absences:
    """Every absence that begins, or is under way, in `[0, duration_s)`.

    all_present: everything has just been switched on at 0; otherwise, and always where there is a
    profile, the population is as an observer finds it at that moment. start_s: time of the week
    at 0, from Monday midnight, for profiles.
    With a profile, machines leave and return at exponential times whose rates make the share that is
    there follow the profile; other models alternate between draws of uptime and repair.
    """
    if model.day_profile is not None:
        own = _by_profile(model, num_machines, duration_s, rng, start_s)
    else:
        own = _by_renewal(model, num_machines, duration_s, rng, all_present)
    rooms = _by_rooms(model, num_machines, duration_s, rng)
    machine = np.concatenate([own[0], rooms[0]])
    since, until = np.concatenate([own[1], rooms[1]]), np.concatenate([own[2], rooms[2]])
    is_room = np.concatenate([np.zeros(len(own[0]), np.bool_), np.ones(len(rooms[0]), np.bool_)])
    order = np.lexsort((machine, since))
    return Absences(machine[order], since[order], until[order], is_room[order])


# ---------------------------------------------------------------- alternating renewal


def _by_renewal(
    model: FailureModel, num_machines: int, duration_s: float, rng: np.random.Generator, all_present: bool
) -> tuple[Numbers, Seconds, Seconds]:
    uptime = _Draws(model.uptime, num_machines, rng)
    repair = _Draws(model.repair, num_machines, rng)
    everyone = np.arange(num_machines)
    now = np.zeros(num_machines)
    starts_away = np.zeros(num_machines, np.bool_)
    if not all_present:
        starts_away = rng.random(num_machines) >= model.availability
    machines: list[Numbers] = []
    sinces: list[Seconds] = []
    untils: list[Seconds] = []
    away = everyone[starts_away]
    if len(away):
        now[away] = repair.residual(away)
        machines.append(away)
        sinces.append(np.zeros(len(away)))
        untils.append(now[away])
    left = now + uptime.fresh(everyone)
    if not all_present:
        there = everyone[~starts_away]
        left[there] = uptime.residual(there)
    active = everyone[left < duration_s]
    while len(active):
        until = left[active] + repair.fresh(active)
        machines.append(active)
        sinces.append(left[active])
        untils.append(until)
        left[active] = until + uptime.fresh(active)
        active = active[left[active] < duration_s]
    if not machines:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    return np.concatenate(machines), np.concatenate(sinces), np.concatenate(untils)


class _Draws:
    """Draws of one distribution, where each machine may have traits of its own for good."""

    def __init__(self, law: Distribution, num_machines: int, rng: np.random.Generator) -> None:
        self._law = law
        self._rng = rng
        self._mean_s = np.zeros(0)
        if isinstance(law, LemonMixture):
            is_lemon = rng.random(num_machines) < law.lemon_share
            self._mean_s = np.where(is_lemon, law.lemon.mean_s, law.sound.mean_s)

    def fresh(self, machines: Numbers) -> Seconds:
        """From the beginning of a period to its end."""
        match self._law:
            case Exponential(mean_s):
                return self._rng.exponential(mean_s, len(machines))
            case Weibull(shape, scale_s):
                return scale_s * self._rng.weibull(shape, len(machines))
            case LemonMixture():
                return self._rng.exponential(self._mean_s[machines])

    def residual(self, machines: Numbers) -> Seconds:
        """From a random moment inside a period to its end. A random moment finds long periods more
        often: of a Weibull, (length / scale) ** shape is then a Gamma(1 + 1/shape) variable."""
        if not isinstance(self._law, Weibull):
            return self.fresh(machines)
        power = self._rng.gamma(1 + 1 / self._law.shape, size=len(machines))
        lengths = self._law.scale_s * power ** (1 / self._law.shape)
        return np.asarray(lengths * self._rng.random(len(machines)))


# ---------------------------------------------------------------- day and week profiles


def share_present(model: FailureModel, at_s: float) -> float:
    """The profile's share of machines there at a time of the week: straight lines between the hours."""
    assert model.day_profile is not None
    hours = at_s % DAY_S / HOUR_S
    before, after = int(hours) % 24, (int(hours) + 1) % 24
    share = model.day_profile[before] + (hours - int(hours)) * (
        model.day_profile[after] - model.day_profile[before]
    )
    if model.week_profile is None:
        return share
    return share * model.week_profile[int(at_s // DAY_S) % DAYS_PER_WEEK]


def _by_profile(
    model: FailureModel,
    num_machines: int,
    duration_s: float,
    rng: np.random.Generator,
    start_s: float,
) -> tuple[Numbers, Seconds, Seconds]:
    """Steps of a minute. Of those there, 1 / mean uptime leave; as many return as the profile asks
    for; where it falls faster than that, more leave and nobody returns."""
    present = rng.random(num_machines) < share_present(model, start_s)
    since = np.where(present, np.nan, 0.0)
    machines: list[Numbers] = []
    sinces: list[Seconds] = []
    untils: list[Seconds] = []
    leaving_share = -np.expm1(-PROFILE_STEP_S / model.uptime.mean_s)
    for step in range(int(np.ceil(duration_s / PROFILE_STEP_S))):
        at_s = step * PROFILE_STEP_S
        target = share_present(model, start_s + at_s + PROFILE_STEP_S)
        leave, come = _shares(present.mean(), target, leaving_share)
        drawn = rng.random(num_machines)
        goes, comes = present & (drawn < leave), ~present & (drawn < come)
        moment = at_s + PROFILE_STEP_S * rng.random(num_machines)
        back = np.flatnonzero(comes)
        machines.append(back)
        sinces.append(since[back])
        untils.append(np.maximum(moment[back], since[back]))
        since[goes] = moment[goes]
        present ^= goes | comes
    away = np.flatnonzero(~present)
    machines.append(away)
    sinces.append(since[away])
    untils.append(np.full(len(away), np.inf))
    return np.concatenate(machines), np.concatenate(sinces), np.concatenate(untils)


def _shares(now: float, target: float, leaving: float) -> tuple[float, float]:
    """Which share of those there leaves in this step, and which of those away returns."""
    stay = now * (1 - leaving)
    if stay > target:
        return min(1.0, 1 - target / now), 0.0
    return leaving, min(1.0, (target - stay) / (1 - now)) if now < 1 else 0.0


# ---------------------------------------------------------------- rooms


def _by_rooms(
    model: FailureModel, num_machines: int, duration_s: float, rng: np.random.Generator
) -> tuple[Numbers, Seconds, Seconds]:
    """Whole rooms, at exponential times; all machines of one come back together."""
    machines: list[Numbers] = [np.zeros(0, np.int64)]
    sinces: list[Seconds] = [np.zeros(0)]
    untils: list[Seconds] = [np.zeros(0)]
    if model.room_size is not None and model.room_loss is not None:
        for first in range(0, num_machines, model.room_size):
            members = np.arange(first, min(first + model.room_size, num_machines))
            at_s = rng.exponential(model.room_loss.mean_s)
            while at_s < duration_s:
                until = at_s + float(_Draws(model.repair, 1, rng).fresh(np.zeros(1, np.int64))[0])
                machines.append(members)
                sinces.append(np.full(len(members), at_s))
                untils.append(np.full(len(members), until))
                at_s = until + rng.exponential(model.room_loss.mean_s)
    return np.concatenate(machines), np.concatenate(sinces), np.concatenate(untils)
