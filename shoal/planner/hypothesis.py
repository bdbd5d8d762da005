"""Statements about machines and a model that can turn out false, and how they are judged.

A hypothesis names machines, a model and claims ("token_time <= 1 s"). A method supplies figures for the
claims: the estimate here, the simulator, or a measurement of a running server. Each figure comes
with the bounds between which the true one lies, so a claim is true or false only where it is so at both.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, Protocol

from shoal.core.units import HOUR_S, Dimension

HOLDS: Final = "holds_model"
HOLDS_TEXT: Final = "the machines hold the model"
METHODS: Final = ("estimate", "simulation", "measurement")
LACKING: Final = "this method has no such figure"

Comparison = Literal["<=", ">="]


class Truth(Enum):
    """UNDECIDED: the margin lies within the method's error, or the method has no such figure."""

    TRUE = "true"
    FALSE = "false"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Measure:
    """Something a claim can be about. comparison: the only one that makes a claim of it; dimension:
    of its limit. is_of_server: whether `server` may stand for the limit: what the rented server costs.
    is_near_one: margins are those of what is missing to the whole: 99.9 % is ten times 99 %.
    is_simulated: no formula has it, since it comes of queues and losses."""

    comparison: Comparison
    dimension: Dimension
    is_of_server: bool = False
    is_near_one: bool = False
    is_simulated: bool = False


_WAIT: Final = Measure("<=", Dimension.SECONDS, is_simulated=True)
_WHOLE: Final = Measure(">=", Dimension.SHARE, is_near_one=True, is_simulated=True)
_PART: Final = Measure("<=", Dimension.SHARE, is_simulated=True)

MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        "token_time": Measure("<=", Dimension.SECONDS),
        "first_token": Measure("<=", Dimension.SECONDS),
        "throughput": Measure(">=", Dimension.TOKENS_PER_S),
        "cost_per_million": Measure("<=", Dimension.USD, is_of_server=True),
        "power": Measure("<=", Dimension.WATTS),
        "losses": Measure("<=", Dimension.PER_DAY),
        "down_share": Measure("<=", Dimension.SHARE),
        "availability": _WHOLE,
        "answered": _WHOLE,
        "lost": _PART,
        "refused": _PART,
        "throughput_under_losses": Measure(">=", Dimension.TOKENS_PER_S, is_simulated=True),
        "first_token_p50": _WAIT,
        "first_token_p90": _WAIT,
        "first_token_p99": _WAIT,
        "token_time_p90": _WAIT,
        "token_time_p99": _WAIT,
        "stall_p50": _WAIT,
        "stall_p90": _WAIT,
    }
)


@dataclass(frozen=True, slots=True)
class Claim:
    """`measure` compared with `limit`, in base units; None stands for the rented server's figure."""

    measure: str
    limit: float | None
    text: str

    @property
    def comparison(self) -> Comparison:
        return MEASURES[self.measure].comparison


@dataclass(frozen=True, slots=True)
class Terms:
    """What a simulation of a hypothesis shall be like, beside what the hypothesis says.

    duration_s: None lets the simulation choose. runs: each with the next seed. mode: "fine" or "coarse";
    None chooses by size. arrivals_per_s: of requests, independent; None: `streams` users who ask
    again at once. answer_tokens: mean. cell_machines: None chooses the fewest that serve. spares, survive,
    polite_share: as in a scenario. is_all_present: every machine is there at the start. start_s: time of the
    week at which it begins.
    """

    duration_s: float | None = None
    runs: int = 3
    seed: int = 1
    mode: str | None = None
    arrivals_per_s: float | None = None
    answer_tokens: int = 128
    cell_machines: int | None = None
    spares: int | None = None
    survive: int = 0
    polite_share: float = 0.0
    is_all_present: bool = True
    start_s: float = 9 * HOUR_S


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One statement. claims_to_hold: whether "the machines hold the model" is one of its claims; the
    other claims fail as well where they do not. by: the method that shall judge it."""

    name: str
    says: str
    machines: str
    model: str
    quantisation: str | None
    link: str | None
    failures: str
    against: str
    streams: int
    context_tokens: int
    prompt_tokens: int
    by: str
    claims_to_hold: bool
    claims: tuple[Claim, ...]
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Known:
    """A method's figure for one measure. low, high: the true figure lies between them. by: the method.
    why: where the bounds come from. best: a bound that the true figure cannot beat; None without one."""

    value: float
    low: float
    high: float
    by: str
    why: str
    best: float | None = None

    @classmethod
    def within(cls, value: float, factor: float, by: str, *, best: float | None = None) -> Known:
        """It may be off by `factor` either way; 1 for exact."""
        why = "exact" if factor == 1 else f"figures may be off by a factor of {factor:g}"
        return cls(value, value / factor, value * factor, by, why, best)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a method found. holds: whether the machines hold the model; why_not otherwise.
    server: the rented server's figures by measure. method: as people know it. lacking: why a figure
    is not there, by measure."""

    method: str
    holds: bool | None
    why_not: str | None
    known: Mapping[str, Known]
    server: Mapping[str, float]
    lacking: Mapping[str, str] = field(default_factory=dict)


class Method(Protocol):
    """Judges hypotheses by supplying figures. The simulator and the measurement are others."""

    def figures(self, hypothesis: Hypothesis) -> Figures: ...


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """measure: None for "the machines hold the model". margin: how far inside its limit the figure
    lies, above 1 where the claim holds. low, high: bounds of the figure. by: the method that gave it.
    None: no figure."""

    measure: str | None
    text: str
    truth: Truth
    reason: str
    limit: float | None = None
    by: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """truth: false if one claim is false; else undecided if one is; else true."""

    name: str
    says: str
    method: str
    truth: Truth
    claims: tuple[ClaimResult, ...]


def judge(hypothesis: Hypothesis, figures: Figures) -> Judgement:
    """Compare every claim with its figure."""
    results = []
    if hypothesis.claims_to_hold:
        results.append(_judge_holding(figures))
    results += [_judge_claim(claim, figures) for claim in hypothesis.claims]
    truths = {result.truth for result in results}
    truth = next((truth for truth in (Truth.FALSE, Truth.UNDECIDED) if truth in truths), Truth.TRUE)
    return Judgement(hypothesis.name, hypothesis.says, figures.method, truth, tuple(results))


def _judge_holding(figures: Figures) -> ClaimResult:
    if figures.holds is None:
        return ClaimResult(None, HOLDS_TEXT, Truth.UNDECIDED, LACKING)
    truth = Truth.TRUE if figures.holds else Truth.FALSE
    reason = figures.why_not or "it fits, with the caches of all streams"
    return ClaimResult(None, HOLDS_TEXT, truth, reason)


def _judge_claim(claim: Claim, figures: Figures) -> ClaimResult:
    limit = figures.server.get(claim.measure) if claim.limit is None else claim.limit
    known = figures.known.get(claim.measure)
    if figures.holds is False:
        reason = "the machines do not hold the model"
        return ClaimResult(claim.measure, claim.text, Truth.FALSE, reason, limit)
    if known is None or limit is None:
        return ClaimResult(claim.measure, claim.text, Truth.UNDECIDED, _lacking(claim, figures), limit)
    truth, reason = _truth(claim, known, limit)
    return ClaimResult(
        measure=claim.measure,
        text=claim.text,
        truth=truth,
        reason=reason,
        limit=limit,
        by=known.by,
        value=known.value,
        low=known.low,
        high=known.high,
        margin=_margin(claim, known.value, limit),
    )


def _truth(claim: Claim, known: Known, limit: float) -> tuple[Truth, str]:
    holds = operator.le if claim.comparison == "<=" else operator.ge
    if known.best is not None and not holds(known.best, limit):
        return Truth.FALSE, "even the bound that nothing can beat misses it"
    at_bounds = {bool(holds(known.low, limit)), bool(holds(known.high, limit))}
    if len(at_bounds) > 1:
        return Truth.UNDECIDED, known.why
    return (Truth.TRUE if at_bounds == {True} else Truth.FALSE), known.why


def _lacking(claim: Claim, figures: Figures) -> str:
    if claim.measure in figures.lacking:
        return figures.lacking[claim.measure]
    if MEASURES[claim.measure].is_simulated:
        return f"{LACKING}; a simulation has it (--by simulation)"
    return LACKING


def _margin(claim: Claim, value: float, limit: float) -> float | None:
    """None where both are 0 or nothing is missing to the whole: no ratio says how far apart they are."""
    if MEASURES[claim.measure].is_near_one:
        small, large = 1 - value, 1 - limit
    else:
        small, large = (value, limit) if claim.comparison == "<=" else (limit, value)
    return large / small if small > 0 else None
