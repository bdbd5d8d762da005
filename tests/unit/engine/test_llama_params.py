"""Parameter structures are filled by names that exist, or not at all."""

from __future__ import annotations

import pytest
from llama_cpp import llama_cpp

from shoal.core.config import EngineConfig
from shoal.core.errors import InvariantBroken
from shoal.engine.llama_params import set_fields, slice_context_params, slice_model_params
from shoal.engine.node_watch import NodeWatch


def test_a_retired_field_is_refused_and_nothing_is_set() -> None:
    params = llama_cpp.llama_model_default_params()
    before = params.n_gpu_layers
    with pytest.raises(InvariantBroken, match=r"llama_model_params .* no field use_mmap"):
        set_fields(params, n_gpu_layers=before + 7, use_mmap=False)
    assert params.n_gpu_layers == before


def test_the_configuration_reaches_the_structures() -> None:
    config = EngineConfig(
        "llama", None, None, cells=2048, max_sequences=5, max_batch_tokens=64, threads=3, gpu_layers=2
    )
    context = slice_context_params(config, NodeWatch(lambda node, is_question: False))
    assert (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max) == (2048, 64, 64, 5)
    assert (context.n_threads, context.n_threads_batch) == (3, 3)
    assert context.kv_unified
    assert context.swa_full
    assert slice_model_params(config, repack=False).n_gpu_layers == 2
    assert not slice_model_params(config, repack=False).use_extra_bufts
    assert slice_model_params(config, repack=True).use_extra_bufts
