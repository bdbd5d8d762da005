"""The outputs a stage has sent for one session, kept to be sent again.

Rows are stored by position, gaplessly from 0, with the lengths of the chunks that they were
computed in. The last stage sends no rows: its journal has width 0 and keeps the lengths only.
"""

from __future__ import annotations

import bisect

import numpy as np

from shoal.engine.interface import Rows

_FIRST_ROWS = 64  # enough for a short chat prompt; doubled as needed up to the reservation


class Journal:
    """One session's outputs on one stage.

    capacity_tokens: what admission reserved; appending past it is a bug.
    """

    def __init__(self, row_width: int, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._rows: Rows = np.empty((min(_FIRST_ROWS, capacity_tokens), row_width), np.float32)
        self._stops: list[int] = []

    @property
    def length(self) -> int:
        """Tokens held, from position 0."""
        return self._stops[-1] if self._stops else 0

    @property
    def allocated_bytes(self) -> int:
        return int(self._rows.nbytes)

    def append(self, count: int, rows: Rows | None) -> None:
        """Add the next chunk of `count` tokens; `rows` is `[count, row_width]`, copied in."""
        start = self.length
        stop = start + count
        if stop > self._capacity:
            raise ValueError(f"journal of {self._capacity} tokens asked to hold {stop}")
        if rows is not None:
            self._reserve(stop)
            self._rows[start:stop] = rows
        self._stops.append(stop)

    def read(self, start: int, stop: int) -> Rows:
        """Rows `[start, stop)`, a view that the next `append` or `trim` may overwrite."""
        if not 0 <= start <= stop <= self.length:
            raise ValueError(f"journal holds [0, {self.length}), asked for [{start}, {stop})")
        return self._rows[start:stop]

    def chunks_from(self, start: int, max_tokens: int) -> tuple[int, ...]:
        """Lengths of the chunks from `start` on, at least one and then up to `max_tokens`.

        Where `start` lies inside a chunk the rest of that chunk counts as one.
        """
        lengths: list[int] = []
        position = start
        for stop in self._stops[self._first_chunk_after(start) :]:
            if lengths and stop - start > max_tokens:
                break
            lengths.append(stop - position)
            position = stop
        return tuple(lengths)

    def trim(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if length >= self.length:
            return
        del self._stops[self._first_chunk_after(length) :]
        if self.length < length:
            self._stops.append(length)

    def _first_chunk_after(self, position: int) -> int:
        return bisect.bisect_right(self._stops, position)

    def _reserve(self, tokens: int) -> None:
        have = len(self._rows)
        if tokens <= have:
            return
        grown = np.empty((min(max(tokens, 2 * have), self._capacity), self._rows.shape[1]), np.float32)
        grown[: self.length] = self._rows[: self.length]
        self._rows = grown
