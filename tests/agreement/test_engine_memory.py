"""A worker's engine holds its slice once: no second copy of repacked or mapped weights."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import psutil
import pytest

from shoal.core.config import EngineConfig
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk
from shoal.engine.llama_engine import LlamaEngine
from shoal.model.slicing import cut_embedding, cut_slice
from tests.support.real_models import qwen_path

NUM_LAYERS = 28
MAX_TOKENS = 128
ALLOWED_FACTOR = 1.45
ALLOWED_BYTES = 300 * 2**20


def memory_of_engine(config: EngineConfig, layers: LayerRange) -> tuple[int, int]:
    """(resident bytes of this process, bytes of the caches) after a prefill and a decode step."""
    engine = LlamaEngine(config, layers, NUM_LAYERS)
    for start, num_tokens in ((0, MAX_TOKENS), (MAX_TOKENS, 1)):
        width = engine.limits.row_width_in
        rows = None if layers.start == 0 else np.ones((num_tokens, width), np.float32)
        engine.compute([Chunk(0, start, [1] * num_tokens)], rows)
    return psutil.Process().memory_info().rss, engine.limits.state_bytes


@pytest.mark.slow
@pytest.mark.parametrize("layers", [LayerRange(0, 10), LayerRange(10, 19), LayerRange(19, 28)], ids=str)
def test_engine_memory_stays_near_its_slice(layers: LayerRange, tmp_path: Path) -> None:
    model = qwen_path()
    slice_path = cut_slice(model, layers, tmp_path / "slice.gguf")
    embedding_path = cut_embedding(model, tmp_path / "embedding.gguf")
    config = EngineConfig("llama", slice_path, embedding_path, max_batch_tokens=MAX_TOKENS)
    # A process of its own: this one's memory has held other engines.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        resident, state = pool.apply(memory_of_engine, (config, layers))
    allowed = ALLOWED_FACTOR * slice_path.stat().st_size + state + ALLOWED_BYTES
    assert resident <= allowed, f"{resident / 2**20:.0f} MiB resident, {allowed / 2**20:.0f} allowed"
