"""What a model's numbers add up to."""

from __future__ import annotations

import pytest

from shoal.core.specs import LayerRange, ModelSpec

SPEC = ModelSpec("m", "qwen2", 3, 8, 100, 512, (10, 20, 30), 1000, 500, (1, 2, 4), "id")


def test_a_range_prints_as_what_it_is() -> None:
    assert (str(LayerRange(2, 5)), LayerRange(2, 5).num_layers) == ("[2, 5)", 3)


@pytest.mark.parametrize(
    ("layers", "weights", "kv"), [((0, 3), 560, 7), ((0, 2), 30, 3), ((2, 3), 530, 4), ((1, 1), 0, 0)]
)
def test_a_slice_counts_its_layers_and_the_last_one_the_head(
    layers: tuple[int, int], weights: int, kv: int
) -> None:
    assert SPEC.slice_bytes(LayerRange(*layers)) == weights
    assert SPEC.slice_kv_bytes_per_token(LayerRange(*layers)) == kv


def test_the_whole_model_has_its_embedding_and_its_head() -> None:
    assert SPEC.total_bytes == 1560
