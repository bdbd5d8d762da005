"""Sums and histograms over all requests, for monitoring. Pure, and cheap enough for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from shoal.core.request_times import HistogramView, RequestTotals, column_names

FIRST_TOKEN_BOUNDS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0)
INTER_TOKEN_BOUNDS_S = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


class Histogram:
    """bounds: as in HistogramView."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    def view(self) -> HistogramView:
        return HistogramView(self._bounds, tuple(self._counts), self._sum_s)


class TotalTimes:
    """Rows added up, place by place; it grows with the longest pipeline that was seen."""

    def __init__(self) -> None:
        self._row: list[float] = []

    def add(self, row: Sequence[float]) -> None:
        while len(self._row) < len(row):
            self._row.append(0.0)
        for place, seconds in enumerate(row):
            self._row[place] += seconds

    def view(self) -> dict[str, float]:
        return dict(zip(column_names(len(self._row) // 2), self._row, strict=False))


class Totals:
    """What the tracer counts over all requests."""

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.time_to_first_token = Histogram(FIRST_TOKEN_BOUNDS_S)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS_S)
        self.prefill = TotalTimes()
        self.decode = TotalTimes()

    def view(self) -> RequestTotals:
        return RequestTotals(
            dict(self.outcomes),
            self.prompt_tokens,
            self.generated_tokens,
            self.time_to_first_token.view(),
            self.inter_token.view(),
            self.prefill.view(),
            self.decode.view(),
        )
