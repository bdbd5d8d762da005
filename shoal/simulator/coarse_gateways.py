"""Which cells a request goes to: each gateway's emptiest first, for all gateways at once."""

from __future__ import annotations

import numpy as np

from shoal.simulator.coarse_cells import Ints


class CoarseGateways:
    """Cells in rows, one row a gateway; the last row may be shorter."""

    def __init__(self, num_cells: int, gateway_cells: int) -> None:
        self._num_cells = num_cells
        self._width = min(gateway_cells, num_cells)
        self._rows = -(-num_cells // self._width)
        self._row_start = np.arange(self._rows)[:, None]

    def emptiest(self, load: Ints, waiting: Ints, full: int) -> Ints:
        """Cells that get one request each: of every gateway as many as wait there, those with the least load
        below `full`, at equal load the first."""
        padded = np.full((self._rows, self._width), full, np.int64)
        padded.flat[: self._num_cells] = np.minimum(load, full)
        # Cells below each load, by gateway: [gateway, load].
        counts = np.bincount(
            (padded + self._row_start * (full + 1)).ravel(), minlength=self._rows * (full + 1)
        )
        upto = counts.reshape(self._rows, full + 1).cumsum(axis=1)
        # Every cell below this load gets one; of those at it, as many as are left over.
        level = (upto <= waiting[:, None]).sum(axis=1)
        below = np.where(level > 0, upto[self._row_start[:, 0], np.maximum(level - 1, 0)], 0)
        at_level = padded == level[:, None]
        is_early = at_level.cumsum(axis=1) <= (waiting - below)[:, None]
        given = (padded < full) & ((padded < level[:, None]) | (at_level & is_early))
        return np.flatnonzero(given.ravel())
