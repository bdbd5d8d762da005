"""LlamaEngine on one slice: what it refuses, what it counts, what it forgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.core.config import EngineConfig
from shoal.core.errors import ConfigError, EngineError, InvariantBroken, KvExhausted, ModelFileError
from shoal.core.sequence import SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine import hidden_tap
from shoal.engine.hidden_tap import SHORT_ROWS
from shoal.engine.interface import Chunk, Draw
from shoal.engine.llama_engine import LlamaEngine
from shoal.model.slicing import cut_embedding, cut_slice
from tests.support.tiny_models import write_tiny_model

NUM_LAYERS = 4
FIRST, LAST = LayerRange(0, 2), LayerRange(2, NUM_LAYERS)
N_EMBD = 64
CELLS = 40
GREEDY = Draw(SamplingParams(temperature=0), 0, ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices")
    model = write_tiny_model(folder / "tiny.gguf", "qwen2", num_layers=NUM_LAYERS, seed=11)
    cut_slice(model, FIRST, folder / "first.gguf")
    cut_slice(model, LAST, folder / "last.gguf")
    cut_embedding(model, folder / "embedding.gguf")
    return folder


def config_for(folder: Path, name: str) -> EngineConfig:
    return EngineConfig(
        kind="llama",
        slice_path=folder / name,
        embedding_path=folder / "embedding.gguf",
        n_ctx=CELLS,
        cells=CELLS,
        max_sequences=3,
        max_batch_tokens=16,
    )


@pytest.fixture
def first(folder: Path) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(config_for(folder, "first.gguf"), FIRST, NUM_LAYERS)
    yield engine
    engine.close()


@pytest.fixture
def last(folder: Path) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(config_for(folder, "last.gguf"), LAST, NUM_LAYERS)
    yield engine
    engine.close()


def rows_of(engine: LlamaEngine, *chunks: Chunk) -> NDArray[np.float32]:
    rows = engine.compute(chunks, None).rows
    assert rows is not None
    return rows


def random_rows(num_tokens: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_tokens, N_EMBD), dtype=np.float32)


# ---------------------------------------------------------------- computing


def test_rows_come_one_a_token_and_stay_valid_after_the_next_batch(first: LlamaEngine) -> None:
    rows = rows_of(first, Chunk(0, 0, [5, 6, 7]))
    before = rows.copy()
    rows_of(first, Chunk(0, 3, [8, 9, 10]))
    assert rows.shape == (3, N_EMBD)
    assert rows.dtype == np.float32
    assert np.array_equal(rows, before)


def test_two_chunks_of_a_sequence_in_one_batch_are_one_longer_chunk(first: LlamaEngine) -> None:
    whole = rows_of(first, Chunk(0, 0, [5, 6, 7]))
    parts = rows_of(first, Chunk(1, 0, [5]), Chunk(1, 1, [6, 7]))
    assert np.array_equal(whole, parts)


def test_sequences_do_not_see_each_other(first: LlamaEngine) -> None:
    alone = rows_of(first, Chunk(0, 0, [5, 6]))
    first.clear(0)
    beside = rows_of(first, Chunk(0, 0, [5, 6]), Chunk(1, 0, [9, 9]))
    assert np.allclose(alone, beside[:2], atol=1e-5)
    assert not np.allclose(alone, beside[2:], atol=1e-2)


def test_tokens_are_drawn_where_asked_only(last: LlamaEngine) -> None:
    drawn = last.compute([Chunk(0, 0, [1, 2], GREEDY), Chunk(1, 0, [3])], random_rows(3)).drawn
    assert drawn == (int(last.logits(1).argmax()), None)
    assert last.compute([Chunk(0, 2, [1])], random_rows(1)).drawn == (None,)


def test_rows_are_taken_from_any_float32_buffer(last: LlamaEngine) -> None:
    wide = random_rows(4).repeat(2, axis=1)
    read_only = np.frombuffer(np.ascontiguousarray(wide[:, ::2]).tobytes(), np.float32).reshape(4, N_EMBD)
    last.compute([Chunk(0, 0, [1] * 4, GREEDY)], wide[:, ::2])
    strided = last.logits(3)
    last.compute([Chunk(1, 0, [1] * 4, GREEDY)], read_only)
    assert np.array_equal(strided, last.logits(3))


def test_progress_moves_at_least_once_a_layer(first: LlamaEngine) -> None:
    before = first.progress
    rows_of(first, Chunk(0, 0, [5]))
    assert first.progress >= before + FIRST.num_layers


@pytest.mark.parametrize(
    ("num_rows", "num_awaited"), [(1, 1), (SHORT_ROWS, 1), (SHORT_ROWS + 1, FIRST.num_layers)]
)
def test_a_short_batch_is_not_split_at_every_layer(
    first: LlamaEngine, monkeypatch: pytest.MonkeyPatch, num_rows: int, num_awaited: int
) -> None:
    awaited: list[int] = []
    goes_on = first._tap._goes_on_after

    def counted(tensor: int) -> bool:
        awaited.append(tensor)
        return goes_on(tensor)

    monkeypatch.setattr(first._tap, "_goes_on_after", counted)
    rows_of(first, Chunk(0, 0, [5] * num_rows))
    assert len(awaited) == num_awaited


# ---------------------------------------------------------------- positions, cells, sequences


@pytest.mark.parametrize("start", [1, 2, 4, 100])
def test_a_chunk_must_start_where_the_sequence_ends(first: LlamaEngine, start: int) -> None:
    rows_of(first, Chunk(0, 0, [5, 6, 7]))
    with pytest.raises(InvariantBroken, match=f"holds 3 tokens .* starts at {start}"):
        rows_of(first, Chunk(0, start, [8]))
    rows_of(first, Chunk(0, 3, [8]))


def test_an_empty_sequence_starts_at_zero(first: LlamaEngine) -> None:
    # llama.cpp itself would take it, and compute nonsense.
    with pytest.raises(InvariantBroken, match="holds 0 tokens"):
        rows_of(first, Chunk(0, 3, [8]))


def test_a_batch_without_room_is_refused_before_anything_is_written(first: LlamaEngine) -> None:
    for start in range(0, 36, 12):
        rows_of(first, Chunk(0, start, [5] * 12))
    with pytest.raises(KvExhausted, match=r"needs 5 cells .* 4 are free"):
        rows_of(first, Chunk(1, 0, [6] * 3), Chunk(2, 0, [7] * 2))
    rows_of(first, Chunk(1, 0, [6] * 3), Chunk(2, 0, [7]))


def test_every_cell_can_be_used_again_after_clear_and_trim(first: LlamaEngine) -> None:
    for _ in range(3):
        for start in range(0, 32, 16):
            rows_of(first, Chunk(0, start, [5] * 16))
        rows_of(first, Chunk(1, 0, [5] * 8))
        assert first.trim(0, 20)
        rows_of(first, Chunk(0, 20, [5] * 12))
        first.clear(0)
        first.clear(1)


def test_scattered_free_cells_hold_one_long_sequence(folder: Path) -> None:
    # 256 is what llama.cpp rounds to, so that no spare cells hide a miscount.
    config = replace(config_for(folder, "first.gguf"), n_ctx=256, cells=256)
    engine = LlamaEngine(config, FIRST, NUM_LAYERS)
    for start in range(0, 128, 8):
        rows_of(engine, Chunk(0, start, [5] * 8), Chunk(1, start, [6] * 8))
    engine.clear(0)
    for start in range(0, 128, 16):
        rows_of(engine, Chunk(2, start, [7] * 16))
    with pytest.raises(KvExhausted, match="0 are free"):
        rows_of(engine, Chunk(2, 128, [7]))
    engine.close()


def test_a_trimmed_sequence_goes_on_as_if_the_tail_had_never_been(first: LlamaEngine) -> None:
    rows_of(first, Chunk(0, 0, [5, 6, 7]))
    straight = rows_of(first, Chunk(0, 3, [8]))
    assert first.trim(0, 3)
    rows_of(first, Chunk(0, 3, [250]))
    assert first.trim(0, 3)
    assert np.array_equal(rows_of(first, Chunk(0, 3, [8])), straight)


def test_trimming_to_what_is_held_changes_nothing(first: LlamaEngine) -> None:
    rows_of(first, Chunk(0, 0, [5, 6]))
    assert first.trim(0, 2)
    assert first.trim(0, 9)
    assert first.trim(1, 0)
    rows_of(first, Chunk(0, 2, [7]))


# ---------------------------------------------------------------- what the caller must not do


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "0 tokens"),
        ([Chunk(0, 0, [])], "no tokens"),
        ([Chunk(0, 0, [5] * 17)], "17 tokens"),
        ([Chunk(3, 0, [5])], "Sequence 3 is outside"),
        ([Chunk(-1, 0, [5])], "Sequence -1 is outside"),
        ([Chunk(0, 0, [100_000])], "vocabulary"),
        ([Chunk(0, 0, [-1])], "vocabulary"),
        ([Chunk(0, 0, [5], GREEDY)], "not the last"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(first: LlamaEngine, chunks: list[Chunk], message: str) -> None:
    with pytest.raises(InvariantBroken, match=message):
        first.compute(chunks, None)
    rows_of(first, Chunk(0, 0, [5]))


def test_rows_of_the_wrong_shape_or_kind_are_refused(first: LlamaEngine, last: LlamaEngine) -> None:
    for rows in (None, random_rows(3), random_rows(2)[:, :63], random_rows(2).astype(np.float64)):
        with pytest.raises(InvariantBroken, match="need float32 rows"):
            last.compute([Chunk(0, 0, [1, 2])], rows)  # type: ignore[arg-type]
    with pytest.raises(InvariantBroken, match="takes tokens"):
        first.compute([Chunk(0, 0, [1, 2])], random_rows(2))


def test_a_closed_engine_says_so(first: LlamaEngine) -> None:
    first.close()
    first.close()
    with pytest.raises(InvariantBroken, match="closed"):
        rows_of(first, Chunk(0, 0, [5]))


# ---------------------------------------------------------------- failures


def test_after_a_failure_the_sequences_of_the_batch_are_empty_and_others_are_not(last: LlamaEngine) -> None:
    last.compute([Chunk(0, 0, [1] * 4)], random_rows(4))
    last.compute([Chunk(1, 0, [1] * 4)], random_rows(4))
    broken = np.full((1, N_EMBD), np.nan, np.float32)
    with pytest.raises(EngineError, match="not a number"):
        last.compute([Chunk(0, 4, [1], GREEDY)], broken)
    last.compute([Chunk(0, 0, [1]), Chunk(1, 4, [1])], random_rows(2))


def test_an_error_inside_the_callback_is_raised_and_not_lost(
    first: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the device went away")

    rows_of(first, Chunk(0, 0, [5]))
    with monkeypatch.context() as patch:
        patch.setattr(hidden_tap, "_tensor_get", fail)
        with pytest.raises(EngineError, match="the device went away"):
            rows_of(first, Chunk(0, 1, [6]))
    rows_of(first, Chunk(0, 0, [5]))


def test_an_error_inside_the_callback_of_the_last_slice_is_raised(
    last: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Unnoticed, it would cut the graph short and leave the logits of the batch before.
    def fail(*_: object) -> None:
        raise OSError("no name")

    last.compute([Chunk(0, 0, [1], GREEDY)], random_rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(hidden_tap, "_get_name", fail)
        with pytest.raises(EngineError, match="no name"):  # of a batch in which every layer is awaited
            last.compute([Chunk(0, 1, [1] * 12, GREEDY)], random_rows(12))
    last.compute([Chunk(0, 0, [1], GREEDY)], random_rows(1))


def test_a_graph_built_elsewhere_in_memory_is_found_again(first: LlamaEngine) -> None:
    rows_of(first, Chunk(0, 0, [5, 6]))
    expected = rows_of(first, Chunk(0, 2, [7]))
    assert first.trim(0, 2)
    tap = first._tap
    tap._known = {address + 1: name for address, name in tap._known.items()}
    tap._chosen.clear()
    assert np.array_equal(rows_of(first, Chunk(0, 2, [7])), expected)
    rows_of(first, Chunk(0, 3, [8]))


def test_an_address_that_now_belongs_to_another_node_is_noticed(first: LlamaEngine) -> None:
    rows_of(first, Chunk(0, 0, [5, 6]))
    expected = rows_of(first, Chunk(0, 2, [7]))
    assert first.trim(0, 2)
    tap = first._tap
    inner, outer = tap._known
    tap._known = {inner: tap._known[outer], outer: tap._known[inner]}
    tap._chosen.clear()
    assert np.array_equal(rows_of(first, Chunk(0, 2, [7])), expected)


# ---------------------------------------------------------------- loading


def test_a_missing_slice_is_named(folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"layers \[0, 2\).*nowhere.gguf"):
        LlamaEngine(config_for(folder, "nowhere.gguf"), FIRST, NUM_LAYERS)


@pytest.mark.parametrize("kept", [0, 3, 2000])
def test_a_damaged_slice_is_named_with_its_layers_and_the_cause(folder: Path, kept: int) -> None:
    path = folder / f"damaged-{kept}.gguf"
    path.write_bytes((folder / "last.gguf").read_bytes()[:kept])
    with pytest.raises(ModelFileError, match=rf"damaged-{kept}.gguf \(layers \[2, 4\)\): .*: (?!no reason)"):
        LlamaEngine(config_for(folder, path.name), LAST, NUM_LAYERS)


def test_a_slice_of_other_layers_is_refused(folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"not the slice of layers \[2, 4\).*starting at 0"):
        LlamaEngine(config_for(folder, "first.gguf"), LAST, NUM_LAYERS)


def test_a_whole_model_is_not_taken_for_a_slice(folder: Path) -> None:
    with pytest.raises(ModelFileError, match="not the slice"):
        LlamaEngine(config_for(folder, "tiny.gguf"), LayerRange(0, NUM_LAYERS), NUM_LAYERS)


def test_the_first_slice_needs_the_embedding(folder: Path) -> None:
    config = replace(config_for(folder, "first.gguf"), embedding_path=None)
    with pytest.raises(ConfigError, match="embedding"):
        LlamaEngine(config, FIRST, NUM_LAYERS)


def test_limits_say_what_the_caches_take(first: LlamaEngine) -> None:
    limits = first.limits
    assert (limits.cells, limits.max_sequences, limits.max_batch_tokens) == (CELLS, 3, 16)
    assert limits.row_width_in == limits.row_width_out == N_EMBD
    # 2 layers, 1 head of 32 for keys and for values, F16; llama.cpp rounds cells up to 256.
    assert limits.state_bytes == 256 * 2 * (32 + 32) * 2
