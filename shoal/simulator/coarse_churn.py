"""Machines of a coarse run leaving and returning, in order of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.catalogue.machine import MachineKind
from shoal.simulator.coarse_cells import Floats, Ints
from shoal.simulator.failures import Absences, draw_absences
from shoal.simulator.scenario import Scenario


class CoarseChurn:
    """Machines leaving and returning, in order of time, as cells. Own absences and the room's may overlap:
    only the first reason to go and the last one to come back count."""

    def __init__(
        self, scenario: Scenario, dealt: Sequence[Sequence[MachineKind]], rng: np.random.Generator
    ) -> None:
        self._kinds = [kind.name for cell in dealt for kind in cell]
        self._cell = np.repeat(np.arange(len(dealt)), [len(cell) for cell in dealt])
        self._at = 0
        churn = scenario.churn
        self._spans = _no_spans()
        if churn is not None:
            absences = draw_absences(
                churn.model,
                len(self._kinds),
                scenario.duration_s,
                rng,
                all_present=churn.all_present,
                start_s=churn.start_s,
            )
            self._spans = _joined(absences)
        machine, since_s, until_s = self._spans
        self._time = np.concatenate([since_s, until_s])
        self._loss = np.concatenate([np.ones(len(since_s), np.bool_), np.zeros(len(until_s), np.bool_)])
        self._which = np.concatenate([self._cell[machine], self._cell[machine]])
        order = np.argsort(self._time, kind="stable")
        self._time, self._loss, self._which = self._time[order], self._loss[order], self._which[order]

    def until(self, end_s: float) -> list[tuple[Ints, bool]]:
        """The cells that machines have left, then those they have returned to, since the last call."""
        stop = int(np.searchsorted(self._time, end_s))
        if stop == self._at:
            return []
        cells, loss = self._which[self._at : stop], self._loss[self._at : stop]
        self._at = stop
        return [(part, flag) for part, flag in ((cells[~loss], False), (cells[loss], True)) if len(part)]

    def machine_s_by_kind(self, elapsed_s: float) -> dict[str, float]:
        machine, since_s, until_s = self._spans
        away = np.clip(np.minimum(until_s, elapsed_s) - np.minimum(since_s, elapsed_s), 0.0, None)
        there_s = elapsed_s - np.bincount(machine, away, len(self._kinds))
        found: dict[str, float] = {}
        for name in dict.fromkeys(self._kinds):
            found[name] = float(there_s[np.array([kind == name for kind in self._kinds])].sum())
        return found


def _no_spans() -> tuple[Ints, Floats, Floats]:
    return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)


def _joined(absences: Absences) -> tuple[Ints, Floats, Floats]:
    """Absences of each machine with overlapping ones made one."""
    order = np.lexsort((absences.since_s, absences.machine))
    machine, since_s = absences.machine[order], absences.since_s[order]
    until_s = absences.until_s[order]
    # The latest end so far within a machine: ends are made comparable by an offset for each machine.
    finite = np.where(np.isfinite(until_s), until_s, 1e9)
    offset = machine * 1e10
    reached = np.maximum.accumulate(finite + offset)
    is_new = np.ones(len(machine), np.bool_)
    is_new[1:] = since_s[1:] + offset[1:] > reached[:-1]
    firsts = np.flatnonzero(is_new)
    lasts = np.append(firsts[1:], len(machine)) - 1
    if not len(firsts):
        return _no_spans()
    return machine[firsts], since_s[firsts], reached[lasts] - offset[lasts]
