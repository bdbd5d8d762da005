"""Cells that lose and regain machines, all at once as arrays: who answers, who stalls, who is lost.

The rules are those of control/recovery.py, in counts: a lost stage goes to a standby where one is ready,
else it is loaded where there is room, else the cell is down until machines return. Which machine
carried what is drawn, not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.simulator.coarse_tables import MAX_DOUBLING, CellTables

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NEVER: Final = np.inf


class CoarseCells:
    """tables: by kind of cell; kind: of each cell. survive, notice_s, polite_share: as in the scenario."""

    def __init__(
        self,
        tables: Sequence[CellTables],
        kind: Ints,
        *,
        survive: int,
        notice_s: float,
        polite_share: float,
        rng: np.random.Generator,
    ) -> None:
        self.stages = np.array([table.num_stages for table in tables])[kind]
        self.there = np.array([table.num_machines for table in tables])[kind]
        self._slots = np.array([table.slots for table in tables])[kind]
        self._load_s = np.array([table.load_s for table in tables])[kind]
        self._replay_s = np.array([table.replay_s for table in tables])[kind]
        self._hot_s = np.array([table.hot_s for table in tables])[kind]
        self._notice_s = notice_s
        self._survive = survive
        self._polite_share = polite_share
        self._rng = rng
        num_cells = len(kind)
        self.prompts = np.zeros(num_cells, np.int64)
        self.answers = np.zeros(num_cells, np.int64)
        self.is_down = np.zeros(num_cells, np.bool_)
        self.ready_s = np.zeros(num_cells)  # of those that are not down: from when on they answer
        self.stalls_s: list[Floats] = []
        self._down_s = np.zeros(num_cells)  # of each cell, up to its ready_s or its fall
        self._fell_s = np.zeros(num_cells)  # of those that are down: since when
        self.num_lost_requests = 0
        self.num_lost_machines = 0
        self.standbys = np.minimum(survive * self.stages, self.there * self._slots - self.stages)
        self._next_standby_s = np.full(num_cells, NEVER)

    @property
    def doubling(self) -> Ints:
        """Index of the tables: stages on the busiest machine, less 1."""
        busiest: Ints = np.minimum(MAX_DOUBLING, -(-self.stages // np.maximum(1, self.there))) - 1
        return busiest

    def answering(self, now_s: float) -> Flags:
        return ~self.is_down & (self.ready_s <= now_s)

    def availability(self, elapsed_s: float) -> float:
        """Share of the time up to `elapsed_s` in which a cell answered, mean over cells."""
        down_s = self._down_s - np.maximum(0.0, self.ready_s - elapsed_s) * ~self.is_down
        down_s += np.maximum(0.0, elapsed_s - self._fell_s) * self.is_down
        return float(1 - down_s.mean() / max(elapsed_s, 1e-9))

    # ------------------------------------------------------------ machines that come and go

    def lose(self, cells: Ints, counts: Ints, now_s: float) -> None:
        """counts machines of each of `cells` are gone."""
        self.num_lost_machines += int(counts.sum())
        there, stages = self.there[cells], self.stages[cells]
        carriers = np.minimum(there, stages)
        gone = self._rng.hypergeometric(carriers, there - carriers, counts)
        lost_stages = np.minimum(stages, np.ceil(gone * stages / np.maximum(carriers, 1)).astype(np.int64))
        standbys = self.standbys[cells]
        covered_stages = np.minimum(standbys, stages)
        covered = self._rng.hypergeometric(covered_stages, stages - covered_stages, lost_stages)
        # A standby may have been on another of the machines that went.
        others = (counts - 1) / np.maximum(there - 1, 1)
        covered = self._rng.binomial(covered, np.clip(1 - others, 0.0, 1.0))
        spare = np.maximum(0, there - carriers)
        is_hot = self._rng.random(len(cells)) < spare / np.maximum(standbys, 1)
        left = self._rng.binomial(standbys - covered, 1 - counts / there)
        self.there[cells] = there - counts
        # A stage without a place takes a standby's, as in production.
        room_beside = self._room(cells, stages)
        has_room = room_beside >= 0
        self.standbys[cells] = np.minimum(left, np.maximum(0, room_beside))
        self._stall(cells[has_room], lost_stages[has_room], covered[has_room], is_hot[has_room], now_s)
        self._drop(cells[~has_room], now_s)
        self._plan_standbys(cells, now_s)

    def _stall(self, cells: Ints, lost: Ints, covered: Ints, is_hot: Flags, now_s: float) -> None:
        """Who lost a stage cannot go on before somebody has it. Polite leavers hand it over first."""
        is_felt = (lost > 0) & ~self.is_down[cells]
        is_felt &= self._rng.random(len(cells)) >= self._polite_share
        cells, lost, covered, is_hot = cells[is_felt], lost[is_felt], covered[is_felt], is_hot[is_felt]
        active = self.prompts[cells] + self.answers[cells]
        must_load = lost > covered
        stall_s = self._notice_s + self._hot_s[cells] + must_load * self._load_s[cells]
        stall_s += np.where(must_load | ~is_hot, active * self._replay_s[cells], 0.0)
        until_s = np.maximum(self.ready_s[cells], now_s + stall_s)
        self.stalls_s.append((until_s - now_s)[active > 0])
        self._down_s[cells] += until_s - np.maximum(self.ready_s[cells], now_s)
        self.ready_s[cells] = until_s

    def _drop(self, cells: Ints, now_s: float) -> None:
        """No room for all stages: what runs there ends with an error."""
        self.num_lost_requests += int((self.prompts[cells] + self.answers[cells]).sum())
        self.prompts[cells] = self.answers[cells] = 0
        falls = cells[~self.is_down[cells]]
        self._fell_s[falls] = np.maximum(self.ready_s[falls], now_s)
        self.is_down[cells] = True

    def regain(self, cells: Ints, counts: Ints, now_s: float) -> None:
        """counts machines are back in each of `cells`, empty."""
        self.there[cells] += counts
        room_beside = self._room(cells, self.stages[cells])
        rises = self.is_down[cells] & (room_beside >= 0)
        self.standbys[cells] = np.minimum(self.standbys[cells], np.maximum(0, room_beside))
        rising = cells[rises]
        self.is_down[rising] = False
        self.ready_s[rising] = now_s + self._load_s[rising]
        self._down_s[rising] += np.maximum(0.0, self.ready_s[rising] - self._fell_s[rising])
        self._plan_standbys(cells, now_s)

    # ------------------------------------------------------------ standbys

    def _most_standbys(self, cells: Ints) -> Ints:
        room = self._room(cells, self.stages[cells])
        most: Ints = np.maximum(0, np.minimum(self._survive * self.stages[cells], room))
        return most

    def _room(self, cells: Ints, taken: Ints) -> Ints:
        """Slices that fit beside `taken` others."""
        found: Ints = self.there[cells] * self._slots[cells] - taken
        return found

    def _plan_standbys(self, cells: Ints, now_s: float) -> None:
        """One at a time, as production does."""
        wanted = (self.standbys[cells] < self._most_standbys(cells)) & ~self.is_down[cells]
        begin_s = np.maximum(now_s, self.ready_s[cells]) + self._load_s[cells]
        known_s = self._next_standby_s[cells]
        self._next_standby_s[cells] = np.where(wanted, np.where(known_s < NEVER, known_s, begin_s), NEVER)

    def restore_standbys(self, now_s: float) -> None:
        """Standbys that have been loaded by now."""
        if self._survive == 0:
            return
        cells = np.flatnonzero(self._next_standby_s <= now_s)
        if len(cells):
            self.standbys[cells] += 1
            self._next_standby_s[cells] = NEVER
            self._plan_standbys(cells, now_s)
