"""What became of each request. Every one ends in exactly one outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """REFUSED: turned away at the door, nothing computed. LOST: ended by an error after it was
    taken in. UNFINISHED: still waiting or running when the simulation ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    LOST = "lost"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. cell: None where it reached none. first_s: of the first token; longest_gap_s:
    between two tokens. Times are virtual seconds since the start; None: it did not happen."""

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    cell: int | None
    outcome: Outcome
    tokens: int
    first_s: float | None
    end_s: float | None
    last_s: float | None
    longest_gap_s: float | None
    error: str | None

    @property
    def first_token_s(self) -> float | None:
        """From asking to the first token."""
        return None if self.first_s is None else self.first_s - self.at_s

    @property
    def token_s(self) -> float | None:
        """Mean time from token to token, after the first; None for fewer than two."""
        if self.first_s is None or self.last_s is None or self.tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class TimePoint:
    """The state of everything at one moment, and what came since the point before."""

    at_s: float
    machines_present: int
    cells_ready: int
    requests_running: int
    requests_waiting: int
    tokens: int
    machines_lost: int
