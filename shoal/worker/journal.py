"""The outputs a stage has sent for one session, kept to be sent again.

Rows are stored by position, without gaps, with the lengths of the chunks that they were computed in.
The last stage sends no rows: its journal has width 0 and keeps the lengths only. A journal that was cut
keeps its last rows only, for entries that are sent again; `first` says from where on.
"""

from __future__ import annotations

import bisect

import numpy as np

from shoal.engine.interface import Rows


class Journal:
    """One session's outputs on one stage.

    capacity_tokens: what admission reserved; appending past it is a bug. first: the position that the
    rows begin at, 0 while it was not cut.
    """

    def __init__(self, row_width: int, capacity_tokens: int) -> None:
        self.first = 0
        self._capacity = capacity_tokens
        self._width = row_width
        self._kept_tokens: int | None = None  # None while it was not cut
        self._rows: Rows = np.empty((0, row_width), np.float32)  # doubled as needed
        self._stops: list[int] = []

    @property
    def length(self) -> int:
        """Tokens held, from position 0."""
        return self._stops[-1] if self._stops else 0

    @property
    def is_cut(self) -> bool:
        return self._kept_tokens is not None

    @property
    def allocated_bytes(self) -> int:
        return int(self._rows.nbytes)

    def growth_bytes(self, count: int) -> int:
        """What the next `append` of `count` rows will allocate besides what there is."""
        return 4 * self._width * max(0, self._room_for(count) - len(self._rows))

    def append(self, count: int, rows: Rows | None) -> None:
        """Add the next chunk of `count` tokens; `rows` is `[count, row_width]`, copied in. None where
        there are none to be kept: of the last stage, or of a session that came with a cut journal."""
        start = self.length
        stop = start + count
        if stop > self._capacity:
            raise ValueError(f"journal of {self._capacity} tokens asked to hold {stop}")
        if rows is not None:
            self._make_room(start, count)
            self._rows[start - self.first : stop - self.first] = rows
        elif self._width:
            self.first = stop
        self._stops.append(stop)

    def cut(self, kept_tokens: int, chunk_tokens: int) -> None:
        """Keep only the last `kept_tokens` rows, from now on too; no chunk is longer than
        `chunk_tokens`. Allocates as many rows as both together."""
        self._kept_tokens = kept_tokens
        self._move(max(self.first, self.length - kept_tokens), kept_tokens + chunk_tokens)

    def read(self, start: int, stop: int) -> Rows:
        """Rows `[start, stop)`, a view that the next `append`, `cut` or `trim` may overwrite."""
        if not self.first <= start <= stop <= self.length:
            raise ValueError(f"journal holds [{self.first}, {self.length}), asked for [{start}, {stop})")
        if not self._width:
            return np.empty((stop - start, 0), np.float32)
        return self._rows[start - self.first : stop - self.first]

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

    def first_whole_chunk(self) -> int:
        """Where the first chunk begins of which all rows are there."""
        if self.first == 0:
            return 0
        return next((stop for stop in self._stops if stop >= self.first), self.length)

    def trim(self, length: int) -> None:
        """Forget everything from position `length` on. Nothing left: it begins anew, uncut."""
        if length >= self.length:
            return
        del self._stops[self._first_chunk_after(length) :]
        if self.length < length:
            self._stops.append(length)
        self.first = min(self.first, length)
        if length == 0:
            self._kept_tokens = None

    def _first_chunk_after(self, position: int) -> int:
        return bisect.bisect_right(self._stops, position)

    def _make_room(self, start: int, count: int) -> None:
        rows = self._room_for(count)
        if rows > len(self._rows):
            self._move(self.first, rows)
        elif start + count - self.first > len(self._rows):
            assert self._kept_tokens is not None
            self._move(start - self._kept_tokens, rows)

    def _room_for(self, count: int) -> int:
        """Rows that are to be allocated so that `count` more fit."""
        have, stop = len(self._rows), self.length + count
        if self._kept_tokens is not None:
            return max(have, min(self._kept_tokens + count, self._capacity))
        return have if stop - self.first <= have else min(max(stop, 2 * have), self._capacity)

    def _move(self, first: int, num_rows: int) -> None:
        """Let the rows begin at `first`, in `num_rows` rows of memory."""
        kept = self._rows[first - self.first : self.length - self.first]
        if num_rows == len(self._rows):
            self._rows[: len(kept)] = kept.copy()  # the two overlap
        else:
            moved = np.empty((num_rows, self._width), np.float32)
            moved[: len(kept)] = kept
            self._rows = moved
        self.first = first
