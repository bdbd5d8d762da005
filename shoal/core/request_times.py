"""Where requests' time went: the shapes behind `/admin/trace`, `shoal trace` and `/metrics`.

All times are seconds. docs/PERFORMANCE.md says what each column counts.
"""

from __future__ import annotations

from dataclasses import dataclass

ADMISSION, DRIVER_QUEUE, DRIVER, STALL, WIRE = range(5)
FIRST_STAGE = 5
"""Places in a row. From FIRST_STAGE on each stage has two: its queue, then its computing."""

PARTS = ("admission", "driver queue", "driver", "stall", "wire")


def column_names(num_stages: int) -> tuple[str, ...]:
    """What each place of a row counts, in words."""
    stages = [f"stage {stage} {part}" for stage in range(num_stages) for part in ("queue", "compute")]
    return (*PARTS, *stages)


def digits_of(request_id: str) -> str:
    """What the names of one request have in common: `x-request-id` and the completion's `id`
    differ in the word before the last dash."""
    return request_id.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One answer's time. Rows have the places of `columns`.

    outcome: None while it runs. wall_s: from the driver's taking it in to its last event.
    prefill: up to the first token. decode: all later tokens together. tokens: a row for each of
    the first later tokens, as many as are remembered.
    """

    request_id: str
    outcome: str | None
    prompt_tokens: int
    generated_tokens: int
    wall_s: float
    columns: tuple[str, ...]
    prefill: tuple[float, ...]
    decode: tuple[float, ...]
    tokens: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class HistogramView:
    """bounds: upper ends of the buckets, seconds, ascending; `counts` has one more, for the rest."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """All requests since the head began. outcomes: how many ended how. prefill, decode: seconds,
    added up over requests, by column name."""

    outcomes: dict[str, int]
    prompt_tokens: int
    generated_tokens: int
    time_to_first_token: HistogramView
    inter_token: HistogramView
    prefill: dict[str, float]
    decode: dict[str, float]
