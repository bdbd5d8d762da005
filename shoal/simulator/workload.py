"""Who asks when, for how much: arrivals in virtual time.

Open patterns do not wait for answers: a Poisson stream, bursts, a recorded trace. The closed one is a
fixed number of users, each of whom asks again when the answer has come. Everything random comes
from the generator given.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from shoal.core.errors import ConfigError
from shoal.core.units import DAY_S, HOUR_S
from shoal.simulator.lengths import Lengths

TRACE_COLUMNS: Final = ("at_s", "prompt_tokens", "output_tokens")


class Arrival(NamedTuple):
    """One request: when it comes, and how long prompt and answer are."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users. per_s: mean rate. day_profile: factor on it for each hour from midnight."""

    per_s: float
    day_profile: tuple[float, ...] | None = None

    def rate_per_s(self, at_s: float) -> float:
        if self.day_profile is None:
            return self.per_s
        return self.per_s * self.day_profile[int(at_s % DAY_S // HOUR_S)]

    def times(self, duration_s: float, rng: np.random.Generator) -> Iterator[float]:
        """Thinning (Lewis and Shedler 1979): draw at the highest rate, keep in proportion."""
        highest = self.per_s * max(self.day_profile or (1.0,))
        at_s = 0.0
        while highest > 0 and (at_s := at_s + rng.exponential(1 / highest)) < duration_s:
            if self.day_profile is None or rng.random() * highest < self.rate_per_s(at_s):
                yield at_s


@dataclass(frozen=True, slots=True)
class Bursts:
    """A Poisson stream whose rate switches between two values (a two-state Markov-modulated process).

    calm_s, burst_s: mean lengths of both states, exponential. It starts calm.
    """

    calm_per_s: float
    burst_per_s: float
    calm_s: float
    burst_s: float

    def rate_per_s(self, at_s: float) -> float:
        """The mean over both states."""
        weighted = self.calm_per_s * self.calm_s + self.burst_per_s * self.burst_s
        return weighted / (self.calm_s + self.burst_s)

    def times(self, duration_s: float, rng: np.random.Generator) -> Iterator[float]:
        at_s, in_burst = 0.0, False
        while at_s < duration_s:
            ends_s = at_s + rng.exponential(self.burst_s if in_burst else self.calm_s)
            rate = self.burst_per_s if in_burst else self.calm_per_s
            while rate > 0 and (at_s := at_s + rng.exponential(1 / rate)) < min(ends_s, duration_s):
                yield at_s
            at_s, in_burst = ends_s, not in_burst


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they were recorded; `lengths` of the workload do not apply."""

    arrivals: tuple[Arrival, ...]

    def rate_per_s(self, at_s: float) -> float:
        """The mean over the whole trace."""
        return len(self.arrivals) / max(self.arrivals[-1].at_s, 1e-9)


@dataclass(frozen=True, slots=True)
class Closed:
    """`users` who each ask, read, think for think_s (mean, exponential) and ask again."""

    users: int
    think_s: float = 0.0


Pattern = Poisson | Bursts | Trace | Closed


@dataclass(frozen=True, slots=True)
class Workload:
    """A pattern of arrivals, and how long prompts and answers are."""

    pattern: Pattern
    prompt: Lengths
    output: Lengths

    def arrivals(self, duration_s: float, rng: np.random.Generator) -> Iterator[Arrival]:
        """Those of open patterns in `[0, duration_s)`, in order; of a closed one the first of each user."""
        match self.pattern:
            case Trace():
                yield from (arrival for arrival in self.pattern.arrivals if arrival.at_s < duration_s)
            case Closed():
                yield from (self.draw(0.0, rng) for _ in range(self.pattern.users))
            case Poisson() | Bursts():
                for at_s in self.pattern.times(duration_s, rng):
                    yield self.draw(at_s, rng)

    def draw(self, at_s: float, rng: np.random.Generator) -> Arrival:
        """One request at `at_s` with lengths of its own."""
        return Arrival(at_s, self.prompt.draw(rng), self.output.draw(rng))

    @property
    def mean_prompt_tokens(self) -> float:
        if isinstance(self.pattern, Trace):
            return float(np.mean([arrival.prompt_tokens for arrival in self.pattern.arrivals]))
        return self.prompt.mean

    @property
    def mean_output_tokens(self) -> float:
        if isinstance(self.pattern, Trace):
            return float(np.mean([arrival.output_tokens for arrival in self.pattern.arrivals]))
        return self.output.mean

    @property
    def longest_tokens(self) -> int:
        """The most that one request can take of a context."""
        if isinstance(self.pattern, Trace):
            return max(arrival.prompt_tokens + arrival.output_tokens for arrival in self.pattern.arrivals)
        return self.prompt.most + self.output.most


def read_trace(path: Path) -> Trace:
    """A CSV file with the columns at_s, prompt_tokens and output_tokens, in order of time.

    Raises ConfigError naming file and line.
    """
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != TRACE_COLUMNS:
                raise ConfigError(
                    f"The trace {path} has the columns {', '.join(reader.fieldnames or ('none',))}.",
                    next_step=f"Its first line must be {','.join(TRACE_COLUMNS)}.",
                )
            arrivals = [_trace_row(path, line, row) for line, row in enumerate(reader, 2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"The trace {path} cannot be read: {error}.") from error
    if not arrivals:
        raise ConfigError(f"The trace {path} holds no request.")
    _check_order(path, arrivals)
    return Trace(tuple(arrivals))


def _trace_row(path: Path, line: int, row: dict[str, str]) -> Arrival:
    try:
        found = Arrival(float(row["at_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The trace {path}, line {line}: {error}.") from error
    if not 0 <= found.at_s < float("inf") or found.prompt_tokens < 1 or found.output_tokens < 1:
        raise ConfigError(
            f"The trace {path}, line {line}, has {tuple(found)}.",
            next_step="Times must be 0 or more, tokens 1 or more.",
        )
    return found


def _check_order(path: Path, arrivals: Sequence[Arrival]) -> None:
    for index in range(1, len(arrivals)):
        if arrivals[index].at_s < arrivals[index - 1].at_s:
            raise ConfigError(f"The trace {path}, line {index + 2}, is earlier than the line before it.")
