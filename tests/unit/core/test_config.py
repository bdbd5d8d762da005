"""A worker reads off its layers which stage it is."""

from __future__ import annotations

import pytest

from shoal.core.config import EngineConfig, WorkerConfig
from shoal.core.placement import NodeId, WorkerId
from shoal.core.specs import LayerRange


@pytest.mark.parametrize(
    ("layers", "is_first", "is_last"),
    [
        (LayerRange(0, 4), True, False),
        (LayerRange(4, 8), False, False),
        (LayerRange(8, 12), False, True),
        (LayerRange(0, 12), True, True),
    ],
)
def test_first_and_last_stage_follow_from_the_layers(
    layers: LayerRange, is_first: bool, is_last: bool
) -> None:
    engine = EngineConfig("digest", None, None)
    config = WorkerConfig(WorkerId("w"), NodeId("n"), layers, 12, engine, "key")
    assert (config.is_first, config.is_last) == (is_first, is_last)
