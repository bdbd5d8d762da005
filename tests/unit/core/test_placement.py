"""Placements, and when they cover a model."""

from __future__ import annotations

import pytest

from shoal.core.placement import Endpoint, Epoch, NodeId, Placement, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange


def _placement(*ranges: tuple[int, int]) -> Placement:
    stages = [
        WorkerInfo(
            WorkerId(f"w{n}"), NodeId(f"n{n}"), LayerRange(*layers), Endpoint("127.0.0.1", 1, "key"), 2, 3
        )
        for n, layers in enumerate(ranges)
    ]
    return Placement(Epoch(1), tuple(stages))


@pytest.mark.parametrize("ranges", [[(0, 6)], [(0, 1), (1, 6)], [(0, 2), (2, 4), (4, 6)]])
def test_stages_in_order_that_leave_nothing_out_cover_the_model(ranges: list[tuple[int, int]]) -> None:
    assert _placement(*ranges).covers(6)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(0, 5)],
        [(1, 6)],
        [(0, 2), (3, 6)],
        [(0, 3), (2, 6)],
        [(3, 6), (0, 3)],
        [(0, 3), (3, 3), (3, 6)],
        [(0, 7)],
    ],
    ids=str,
)
def test_gaps_overlaps_empty_stages_and_another_order_do_not(ranges: list[tuple[int, int]]) -> None:
    assert not _placement(*ranges).covers(6)
