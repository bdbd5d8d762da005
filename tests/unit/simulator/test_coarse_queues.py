"""Queues and gateways of the coarse mode against plain first come first served, one request at a time."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from shoal.simulator.coarse_gateways import CoarseGateways
from shoal.simulator.coarse_queues import FIRST_ROWS, CoarseQueues

STEP_S = 0.5


def counts(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("capacity", [2.9, 3.0, 6.0])
def test_waits_are_those_of_a_queue_of_single_requests(capacity: float) -> None:
    """Three come in a step on average; the queue grows, holds, or is empty most of the time."""
    rng = np.random.default_rng(3)
    queues, single = CoarseQueues(counts(10_000), STEP_S), deque[float]()
    errors = []
    for step in range(2000):
        come, taken = int(rng.poisson(3.0)), int(rng.poisson(capacity))
        queues.add(counts(come))
        single.extend((step + (n + 0.5) / max(come, 1)) * STEP_S for n in range(come))
        taken = min(taken, len(single))
        queues.take(counts(taken))
        assert queues.end_step() == 0
        waits = [(step + (n + 0.5) / taken) * STEP_S - single.popleft() for n in range(taken)]
        assert int(queues.waiting[0]) == len(single)
        if waits and len(single):
            errors.append(float(queues.waited_s[0]) - float(np.mean(waits)))
    assert abs(np.mean(errors)) < STEP_S / 5
    assert np.max(np.abs(errors)) < 4 * STEP_S


def test_a_queue_that_stands_still_ages_by_a_step_each_step() -> None:
    queues = CoarseQueues(counts(10, 10), STEP_S)
    queues.add(counts(4, 0))
    queues.end_step()
    for _ in range(3 * FIRST_ROWS):  # longer than the rows that are there at first
        queues.add(counts(0, 0))
        queues.end_step()
    # The first of four came at the beginning of its step.
    assert queues._first_s[0] == pytest.approx((3 * FIRST_ROWS + 1) * STEP_S)
    assert queues.waited_s[1] == 0


def test_the_newest_are_refused_where_the_queue_is_full() -> None:
    queues = CoarseQueues(counts(3), STEP_S)
    queues.add(counts(3))
    assert queues.end_step() == 0
    queues.add(counts(2))
    queues.take(counts(1))
    assert queues.end_step() == 1
    assert queues.waiting.tolist() == [3]
    queues.add(counts(0))
    queues.take(counts(2))
    queues.end_step()
    # The one left came in the second of three steps, as the only one that was taken in.
    assert queues._first_s[0] == pytest.approx(2 * STEP_S)


def test_nobody_waits_where_all_are_taken_at_once() -> None:
    queues = CoarseQueues(counts(3), STEP_S)
    queues.add(counts(2))
    queues.take(counts(2))
    queues.end_step()
    assert queues.is_empty
    assert queues.waited_s[0] == 0


@pytest.mark.parametrize("seed", range(20))
def test_each_gateway_gives_to_its_emptiest_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_cells, width, full = int(rng.integers(1, 40)), int(rng.integers(1, 12)), 4
    gateways = -(-num_cells // width)
    load = rng.integers(0, full + 1, num_cells)
    waiting = rng.integers(0, 2 * width, gateways)
    chosen = CoarseGateways(num_cells, width).emptiest(load, waiting, full)
    expected = []
    for gateway in range(gateways):
        cells = range(gateway * width, min((gateway + 1) * width, num_cells))
        able = sorted((int(load[cell]), cell) for cell in cells if load[cell] < full)
        expected += [cell for _, cell in able[: int(waiting[gateway])]]
    assert sorted(chosen.tolist()) == sorted(expected)
