"""Requests that wait at gateways, first come first served: how many, and for how long the first one has.

A queue holds its newest arrivals, so when the first of them came follows from when arrivals came, step by
step. (Length over the rate at which answers end would be the wait of who comes now, and is wrong for
those who leave while a queue grows or shrinks.)
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.simulator.coarse_cells import Floats, Ints

FIRST_ROWS: Final = 64


class CoarseQueues:
    """limit: requests that may wait at each gateway. step_s: length of a step."""

    def __init__(self, limit: Ints, step_s: float) -> None:
        self.waiting = np.zeros(len(limit), np.int64)
        self.waited_s = np.zeros(len(limit))
        """Of those that cells were given in the last step, the mean at each gateway."""
        self._limit = limit
        self._step_s = step_s
        self._step = 0
        self._taken = np.zeros(len(limit), np.int64)  # so far, by cells
        # Requests that have come by the end of each step: a ring of rows from the oldest that matters.
        self._come = np.zeros((FIRST_ROWS, len(limit)), np.int64)
        self._first_step = np.zeros(len(limit), np.int64)  # in which the first that waits came
        self._first_s = np.zeros(len(limit))  # for how long it has waited, at the end of the last step

    @property
    def is_empty(self) -> bool:
        return not self.waiting.any()

    def add(self, come: Ints) -> None:
        """A new step begins, in which these come."""
        self.waiting += come
        self._step += 1
        if self._step - self._first_step.min() >= len(self._come) - 1:
            self._grow()
        self._come[self._step % len(self._come)] = self._taken + self.waiting

    def take(self, given: Ints) -> None:
        """Cells are given so many of each gateway's first ones."""
        self.waiting -= given
        self._taken += given

    def end_step(self) -> int:
        """Refuse who finds the queue full; how many that are. Sets waited_s."""
        refused = np.maximum(0, self.waiting - self._limit)
        self.waiting -= refused
        self._come[self._step % len(self._come)] -= refused
        # Cells take requests all through the step: the first had waited as long as at its beginning.
        before_s = self._first_s
        self._first_s = self._ages()
        self.waited_s = (before_s + self._first_s) / 2
        return int(refused.sum())

    def _ages(self) -> Floats:
        if self.is_empty:
            self._first_step[:] = self._step
            return np.zeros(len(self.waiting))
        rows, everyone = len(self._come), np.arange(len(self.waiting))
        self._first_step = np.where(self.waiting > 0, self._first_step, self._step)
        while True:
            is_gone = (self._come[self._first_step % rows, everyone] <= self._taken) & (self.waiting > 0)
            if not is_gone.any():
                break
            self._first_step += is_gone
        upto = self._come[self._first_step % rows, everyone]
        before = self._come[(self._first_step - 1) % rows, everyone]
        # Arrivals of a step are taken as evenly spread over it.
        inside = (self._taken - before) / np.maximum(upto - before, 1)
        age_s = (self._step - self._first_step + 1 - inside) * self._step_s
        return np.where(self.waiting > 0, age_s, 0.0)

    def _grow(self) -> None:
        """Twice the rows, each at its new place."""
        steps = np.arange(max(0, self._step - len(self._come)), self._step)
        larger = np.zeros((2 * len(self._come), len(self._limit)), np.int64)
        larger[steps % len(larger)] = self._come[steps % len(self._come)]
        self._come = larger
