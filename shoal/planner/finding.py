"""An answer with its numbers: what was compared, by which formula, and what would turn it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

CLEAR: Final = 1.25  # a margin below this, or above its inverse, is within the inputs' uncertainty


class Verdict(Enum):
    """CLOSE: have and need lie within a quarter of each other, so the inputs' errors decide.
    UNKNOWN: a figure is missing."""

    YES = "yes"
    NO = "no"
    CLOSE = "close"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a finding. value: in the base unit that its name ends in, None where there is no
    such number; text: for people."""

    name: str
    value: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """margin: what is there over what is needed; None where one of them is not known. turn: what
    would have to change for the verdict to turn."""

    question: str
    verdict: Verdict
    margin: float | None
    answer: str
    figures: tuple[Figure, ...]
    formula: str
    turn: str


def verdict_of(margin: float | None) -> Verdict:
    """YES from a margin of 1.25 on, NO below 0.8, CLOSE between."""
    if margin is None:
        return Verdict.UNKNOWN
    if margin >= CLEAR:
        return Verdict.YES
    return Verdict.NO if margin < 1 / CLEAR else Verdict.CLOSE
