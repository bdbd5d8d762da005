"""Invariant mode's rules for one engine: how batches are cut, when rows are padded, what is refused."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from shoal.core.config import EngineConfig
from shoal.core.errors import ConfigError, InvariantBroken, KvExhausted
from shoal.core.invariant_mode import cells_of_a_sequence
from shoal.core.sequence import SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Draw
from shoal.engine.invariance import MatrixKinds, RowRules, matrix_kinds, row_rules, switch_tiling_off
from shoal.engine.llama_batch import LlamaBatch
from shoal.engine.llama_engine import LlamaEngine
from shoal.engine.llama_runtime import llama_runtime
from shoal.model.slicing import cut_embedding, cut_slice
from tests.support.tiny_models import write_tiny_model

NUM_LAYERS = 4
FIRST, LAST = LayerRange(0, 2), LayerRange(2, NUM_LAYERS)
N_CTX = 40
GREEDY = Draw(SamplingParams(temperature=0), 0, ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices")
    model = write_tiny_model(folder / "tiny.gguf", "qwen2", num_layers=NUM_LAYERS, weights="F16", seed=11)
    cut_slice(model, FIRST, folder / "first.gguf")
    cut_slice(model, LAST, folder / "last.gguf")
    cut_embedding(model, folder / "embedding.gguf")
    return folder


def _config(folder: Path, name: str) -> EngineConfig:
    return EngineConfig(
        kind="llama",
        slice_path=folder / name,
        embedding_path=folder / "embedding.gguf",
        n_ctx=N_CTX,
        max_sequences=4,
        max_batch_tokens=16,
        invariant=True,
    )


@pytest.fixture
def first(folder: Path) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(_config(folder, "first.gguf"), FIRST, NUM_LAYERS)
    yield engine
    engine.close()


@pytest.fixture
def last(folder: Path) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(_config(folder, "last.gguf"), LAST, NUM_LAYERS)
    yield engine
    engine.close()


# ---------------------------------------------------------------- batches


def test_any_batch_gives_the_rows_that_its_chunks_give_alone(first: LlamaEngine) -> None:
    texts = {0: [5, 6, 7], 1: [8], 2: [9, 10], 3: [11]}
    alone = []
    for seq, tokens in texts.items():
        for start, token in enumerate(tokens):
            rows = first.compute([Chunk(seq, start, [token])], None).rows
            assert rows is not None
            assert rows.shape == (1, 64)
            alone.append(rows)
        first.clear(seq)
    chunks = [
        Chunk(0, 0, [5]),
        Chunk(0, 1, [6, 7]),
        Chunk(1, 0, [8]),
        Chunk(2, 0, [9, 10]),
        Chunk(3, 0, [11]),
    ]
    together = first.compute(chunks, None).rows
    assert together is not None
    assert np.array_equal(together, np.concatenate(alone))
    first.compute([Chunk(0, 3, [1]), Chunk(2, 2, [1])], None)


def test_tokens_are_drawn_in_every_part_of_a_batch(last: LlamaEngine) -> None:
    rows = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    alone = [last.compute([Chunk(seq, 0, [1], GREEDY)], rows[seq : seq + 1]).drawn[0] for seq in (0, 1, 2)]
    for seq in (0, 1, 2):
        last.clear(seq)
    chunks = [Chunk(2, 0, [1], GREEDY), Chunk(0, 0, [1], GREEDY), Chunk(1, 0, [1], GREEDY), Chunk(3, 0, [1])]
    assert last.compute(chunks, rows[[2, 0, 1, 3]]).drawn == (alone[2], alone[0], alone[1], None)
    assert len(set(alone)) > 1


def test_a_draw_has_the_bits_that_it_has_alone_whoever_else_draws(last: LlamaEngine) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)
    last.compute([Chunk(1, 0, [1], GREEDY)], rows[1:2])
    alone = last.logits(0)
    last.clear(1)
    last.compute([Chunk(0, 0, [1]), Chunk(1, 0, [1], GREEDY), Chunk(2, 0, [1])], rows)
    assert np.array_equal(last.logits(1), alone)
    for seq in (0, 1, 2):
        last.clear(seq)
    last.compute([Chunk(seq, 0, [1], GREEDY) for seq in (0, 1, 2)], rows)
    assert np.array_equal(last.logits(1), alone)


# ---------------------------------------------------------------- a lone token


def test_a_lone_token_takes_one_cell_and_leaves_nothing_behind(first: LlamaEngine) -> None:
    first.compute([Chunk(0, 0, [5, 6])], None)
    for start in range(2, N_CTX):
        first.compute([Chunk(0, start, [7])], None)
    with pytest.raises(InvariantBroken, match="the context is 40"):
        first.compute([Chunk(0, N_CTX, [7])], None)


def test_a_context_of_whole_steps_has_room_for_the_repetition(folder: Path) -> None:
    config = replace(_config(folder, "first.gguf"), n_ctx=256, max_sequences=1, max_batch_tokens=255)
    engine = LlamaEngine(config, FIRST, NUM_LAYERS)
    engine.compute([Chunk(0, 0, [5] * 255)], None)
    engine.compute([Chunk(0, 255, [5])], None)
    engine.close()


def test_a_batch_of_one_token_may_be_all_that_is_allowed(folder: Path) -> None:
    engine = LlamaEngine(replace(_config(folder, "first.gguf"), max_batch_tokens=1), FIRST, NUM_LAYERS)
    assert engine.limits.max_batch_tokens == 1
    engine.compute([Chunk(0, 0, [5])], None)
    engine.close()


def test_a_state_that_was_handed_over_goes_on_with_the_same_bits(folder: Path, first: LlamaEngine) -> None:
    first.compute([Chunk(1, 0, [5, 6, 7], num_prompt=3)], None)
    first.compute([Chunk(1, 3, [8])], None)
    state = first.save(1)
    straight = first.compute([Chunk(1, 4, [9])], None).rows
    successor = LlamaEngine(_config(folder, "first.gguf"), FIRST, NUM_LAYERS)
    successor.compute([Chunk(0, 0, [1, 2])], None)
    successor.restore(1, state, 4)
    together = successor.compute([Chunk(0, 2, [3]), Chunk(1, 4, [9])], None).rows
    assert straight is not None
    assert together is not None
    assert np.array_equal(together[1:], straight)
    successor.close()


# ---------------------------------------------------------------- memory


def test_every_sequence_can_be_full_at_once_and_no_fuller(first: LlamaEngine) -> None:
    assert first.limits.cells == 4 * N_CTX
    for seq in range(4):
        for start in range(0, N_CTX, 8):
            first.compute([Chunk(seq, start, [5] * 8)], None)
    with pytest.raises((InvariantBroken, KvExhausted)):
        first.compute([Chunk(3, N_CTX, [5])], None)


@pytest.mark.parametrize(("n_ctx", "cells"), [(1, 256), (249, 256), (250, 512), (4096, 4352)])
def test_a_sequence_has_seven_cells_more_than_tokens_in_whole_steps(n_ctx: int, cells: int) -> None:
    assert cells_of_a_sequence(n_ctx) == cells


def test_limits_say_what_the_caches_take(first: LlamaEngine) -> None:
    # 4 sequences of 256 cells, 2 layers, 1 head of 32 for keys and for values, 34 bytes each.
    assert first.limits.state_bytes == 4 * 256 * 2 * (34 + 34)


# ---------------------------------------------------------------- kernels


def test_kinds_are_those_of_the_matrices(folder: Path) -> None:
    # Norms and biases are F32 vectors; a slice without a head has a dummy embedding of one row.
    dense = MatrixKinds(experts=frozenset(), others=frozenset({Kind.F16}))
    assert matrix_kinds(folder / "first.gguf", is_last=False) == dense
    assert matrix_kinds(folder / "last.gguf", is_last=True) == dense
    moe = write_tiny_model(folder / "moe.gguf", "qwen3moe", weights="Q8_0")
    # The router stays F32.
    kinds = MatrixKinds(experts=frozenset({Kind.Q8_0}), others=frozenset({Kind.Q8_0, Kind.F32}))
    assert matrix_kinds(moe, is_last=True) == kinds


@pytest.mark.parametrize(
    ("others", "experts", "rules"),
    [
        ({Kind.Q4_K, Kind.Q6_K}, set(), RowRules(prompt_least=8, least=1, most=7)),
        ({Kind.Q4_K, Kind.Q5_0}, set(), RowRules(prompt_least=8, least=2, most=7)),
        ({Kind.F16}, set(), RowRules(prompt_least=2, least=2, most=None)),
        ({Kind.Q5_1}, set(), RowRules(prompt_least=1, least=1, most=None)),
        ({Kind.Q4_K, Kind.F32}, {Kind.Q4_K}, RowRules(prompt_least=2, least=2, most=None)),
        ({Kind.Q4_K, Kind.F32}, {Kind.Q8_0}, RowRules(prompt_least=8, least=2, most=7)),
    ],
)
def test_rows_a_batch_must_have_follow_from_the_kinds(
    others: set[Kind], experts: set[Kind], rules: RowRules
) -> None:
    assert row_rules(MatrixKinds(frozenset(experts), frozenset(others))) == rules


@pytest.mark.parametrize(("name", "layers"), [("first.gguf", FIRST), ("last.gguf", LAST)])
def test_a_machine_that_does_not_keep_the_promise_is_refused_when_it_loads(
    name: str, layers: LayerRange, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These weights treat a lone row differently, as another machine may treat other numbers of rows.
    monkeypatch.setattr(LlamaBatch, "pad", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=rf"computes layers \{str(layers)[:-1]}\) to other bits"):
        LlamaEngine(_config(folder, name), layers, NUM_LAYERS)


def _refusal_after_default_mode() -> str:
    llama_runtime().may_have_tiled = True
    with pytest.raises(InvariantBroken) as refusal:
        switch_tiling_off(llama_runtime())
    return str(refusal.value)


def test_tiling_cannot_be_switched_off_once_a_process_may_have_computed_with_it() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert "process of their own" in pool.apply(_refusal_after_default_mode)
