"""Statements about machines and a model that can turn out false, and how they are judged.

A hypothesis names machines, a model and claims ("token_time <= 1 s"). A method supplies figures for the
claims: the estimate here, the simulator, or a measurement of a running server. Each figure comes
with the factor that it may be off by, so a claim is true or false only where that factor cannot turn it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, Protocol

from shoal.core.units import Dimension

HOLDS: Final = "holds_model"
HOLDS_TEXT: Final = "the machines hold the model"

Comparison = Literal["<=", ">="]


class Truth(Enum):
    """UNDECIDED: the margin lies within the method's error, or the method has no such figure."""

    TRUE = "true"
    FALSE = "false"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Measure:
    """Something a claim can be about. comparison: the only one that makes a claim of it; dimension:
    of its limit. is_of_server: whether `server` may stand for the limit: what the rented server costs."""

    comparison: Comparison
    dimension: Dimension
    is_of_server: bool = False


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        "token_time": Measure("<=", Dimension.SECONDS),
        "first_token": Measure("<=", Dimension.SECONDS),
        "throughput": Measure(">=", Dimension.TOKENS_PER_S),
        "cost_per_million": Measure("<=", Dimension.USD, is_of_server=True),
        "power": Measure("<=", Dimension.WATTS),
        "losses": Measure("<=", Dimension.PER_DAY),
        "down_share": Measure("<=", Dimension.SHARE),
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


@dataclass(frozen=True, slots=True)
class Known:
    """A method's figure for one measure. factor: it may be off by this much either way, 1 for exact.
    best: a bound that the true figure cannot beat; None without one."""

    value: float
    factor: float
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a method found. holds: whether the machines hold the model; why_not otherwise.
    server: the rented server's figures by measure. method: as people know it."""

    method: str
    holds: bool | None
    why_not: str | None
    known: Mapping[str, Known]
    server: Mapping[str, float]


class Method(Protocol):
    """Judges hypotheses by supplying figures. The simulator and the measurement are others."""

    def figures(self, hypothesis: Hypothesis) -> Figures: ...


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """measure: None for "the machines hold the model". margin: how far inside its limit the figure
    lies, above 1 where the claim holds. None: no figure."""

    measure: str | None
    text: str
    truth: Truth
    value: float | None
    limit: float | None
    margin: float | None
    reason: str


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
        return _unknown(None, HOLDS_TEXT, None)
    truth = Truth.TRUE if figures.holds else Truth.FALSE
    reason = figures.why_not or "it fits, with the caches of all streams"
    return ClaimResult(None, HOLDS_TEXT, truth, None, None, None, reason)


def _judge_claim(claim: Claim, figures: Figures) -> ClaimResult:
    limit = figures.server.get(claim.measure) if claim.limit is None else claim.limit
    known = figures.known.get(claim.measure)
    if figures.holds is False:
        reason = "the machines do not hold the model"
        return ClaimResult(claim.measure, claim.text, Truth.FALSE, None, limit, None, reason)
    if known is None or limit is None:
        return _unknown(claim.measure, claim.text, limit)
    margin = _margin(claim, known.value, limit)
    if known.best is not None and _margin(claim, known.best, limit) < 1:
        reason = "even the bound that nothing can beat misses it"
        return ClaimResult(claim.measure, claim.text, Truth.FALSE, known.value, limit, margin, reason)
    if margin >= known.factor:
        truth = Truth.TRUE
    else:
        truth = Truth.FALSE if margin < 1 / known.factor else Truth.UNDECIDED
    reason = "exact" if known.factor == 1 else f"figures may be off by a factor of {known.factor:g}"
    return ClaimResult(claim.measure, claim.text, truth, known.value, limit, margin, reason)


def _margin(claim: Claim, value: float, limit: float) -> float:
    small, large = (value, limit) if claim.comparison == "<=" else (limit, value)
    return large / small if small else float("inf")


def _unknown(measure: str | None, text: str, limit: float | None) -> ClaimResult:
    return ClaimResult(measure, text, Truth.UNDECIDED, None, limit, None, "this method has no such figure")
