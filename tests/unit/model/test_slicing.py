"""Slices hold what they should, load in llama.cpp, and appear whole or not at all."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp

from shoal.core.errors import ConfigError, IllegalCut
from shoal.core.specs import LayerRange
from shoal.model import slicing
from shoal.model.gguf_file import ModelFile
from shoal.model.slicing import cut_embedding, cut_slice, embedding_file_bytes, runs_text, slice_file_bytes
from tests.support.tiny_models import ARCHITECTURES
from tests.unit.model.conftest import TinyModel

NUM_LAYERS = 6


def tensor_bytes(model: ModelFile, name: str) -> bytes:
    tensor = model.tensor(name)
    return bytes(model.raw(tensor.start, tensor.start + tensor.num_bytes))


def num_vocab_in_llama(path: Path) -> int:
    """Loads the file with unmodified llama.cpp, weights and all."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp does not load {path}"
    try:
        return int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)))
    finally:
        llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_slices_load_in_llama_and_only_the_last_has_a_vocabulary(
    tmp_path: Path, tiny_model: TinyModel, architecture: str, tied: bool
) -> None:
    source = tiny_model(architecture, tied=tied)
    sizes = [
        num_vocab_in_llama(cut_slice(source, LayerRange(start, end), tmp_path / f"{start}.gguf"))
        for start, end in pairwise((0, 2, 4, NUM_LAYERS))
    ]
    assert sizes == [1, 1, 300]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(architecture=st.sampled_from(ARCHITECTURES), cuts=st.sets(st.integers(1, NUM_LAYERS - 1), max_size=4))
def test_any_legal_cuts_carry_every_block_byte_exactly_once(
    tmp_path: Path, tiny_model: TinyModel, architecture: str, cuts: set[int]
) -> None:
    source = ModelFile(tiny_model(architecture))
    seen: dict[str, bytes] = {}
    for start, end in pairwise((0, *sorted(cuts), NUM_LAYERS)):
        try:
            path = cut_slice(source.path, LayerRange(start, end), tmp_path / "slice.gguf")
        except IllegalCut:
            assert architecture == "gemma3"
            assert (start, end) == (5, 6)
            return
        piece = ModelFile(path)
        assert piece.integer(f"{architecture}.block_count") == end - start
        for name in piece.tensors:
            if name.startswith("blk."):
                layer, suffix = slicing.split_block_name(piece, name)
                assert layer is not None
                original = f"blk.{layer + start}.{suffix}"
                assert original not in seen
                seen[original] = tensor_bytes(piece, name)
    blocks = [name for name in source.tensors if name.startswith("blk.")]
    assert sorted(seen) == sorted(blocks)
    assert all(seen[name] == tensor_bytes(source, name) for name in blocks)


def test_a_slice_before_the_last_has_one_row_and_no_tokenizer(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = ModelFile(tiny_model("llama"))
    piece = ModelFile(cut_slice(source.path, LayerRange(0, 3), tmp_path / "slice.gguf"))
    assert piece.tensor("token_embd.weight").dims == (64, 1)
    assert "output.weight" not in piece.tensors
    assert [key for key in piece.fields if key.startswith("tokenizer.")] == ["tokenizer.ggml.model"]
    assert piece.text("tokenizer.ggml.model") == "no_vocab"
    assert piece.integer("llama.vocab_size") == 1
    assert tensor_bytes(piece, "rope_freqs.weight") == tensor_bytes(source, "rope_freqs.weight")


@pytest.mark.parametrize("tied", [True, False])
def test_the_last_slice_keeps_the_tokenizer_and_ties_the_head(
    tmp_path: Path, tiny_model: TinyModel, tied: bool
) -> None:
    source = ModelFile(tiny_model("qwen3", tied=tied))
    piece = ModelFile(cut_slice(source.path, LayerRange(4, 6), tmp_path / "slice.gguf"))
    head = "token_embd.weight" if tied else "output.weight"
    assert "output.weight" not in piece.tensors
    assert tensor_bytes(piece, "token_embd.weight") == tensor_bytes(source, head)
    for key, field in source.fields.items():
        if key.startswith(("tokenizer.", "general.")):
            copied = piece.fields[key]
            assert piece.raw(copied.kind_start, copied.end) == source.raw(field.kind_start, field.end)


def test_a_gemma3_slice_states_the_pattern_of_its_own_layers(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = tiny_model("gemma3", num_layers=12)
    piece = ModelFile(cut_slice(source, LayerRange(4, 8), tmp_path / "slice.gguf"))
    pattern = piece.numbers("gemma3.attention.sliding_window_pattern")
    assert pattern is not None
    assert pattern.tolist() == [True, False, True, True]


def test_the_query_norm_of_a_62_layer_gemma3_is_rescaled(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = ModelFile(tiny_model("gemma3", num_layers=62))
    piece = ModelFile(cut_slice(source.path, LayerRange(30, 62), tmp_path / "slice.gguf"))
    before = source.tensor_rows(source.tensor("blk.31.attn_q_norm.weight")).view(np.float32)
    after = piece.tensor_rows(piece.tensor("blk.1.attn_q_norm.weight")).view(np.float32)
    np.testing.assert_allclose(after, before * 2**0.5, rtol=1e-6)


@pytest.mark.parametrize("layers", [(0, 0), (3, 2), (0, 7), (-1, 3)])
def test_an_impossible_range_is_refused_with_the_legal_cuts_before_anything_is_written(
    tmp_path: Path, tiny_model: TinyModel, layers: tuple[int, int]
) -> None:
    with pytest.raises(IllegalCut, match="before layers 1 to 5"):
        cut_slice(tiny_model("qwen2"), LayerRange(*layers), tmp_path / "new" / "slice.gguf")
    assert list(tmp_path.iterdir()) == []


def test_legal_cuts_of_gemma3_leave_out_a_last_slice_without_window(tiny_model: TinyModel) -> None:
    with pytest.raises(IllegalCut, match="before layers 1 to 10"):
        cut_slice(tiny_model("gemma3", num_layers=12), LayerRange(11, 12), Path("never-written.gguf"))
    assert runs_text((1, 2, 3, 5, 7, 8)) == "1 to 3, 5, 7 to 8"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_stops_a_cut_leaves_no_file(
    tmp_path: Path, tiny_model: TinyModel, stop: type[BaseException]
) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise stop

    with pytest.raises(stop):
        cut_slice(tiny_model("qwen2"), LayerRange(0, 3), tmp_path / "slice.gguf", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_cut_leaves_the_older_file_as_it_was(tmp_path: Path, tiny_model: TinyModel) -> None:
    target = tmp_path / "slice.gguf"
    target.write_bytes(b"older")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_slice(tiny_model("qwen2"), LayerRange(0, 3), target, interrupt)
    assert target.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [target]


def test_progress_grows_to_the_exact_size_of_the_file(tmp_path: Path, tiny_model: TinyModel) -> None:
    source, layers = tiny_model("qwen3moe"), LayerRange(2, 6)
    seen: list[tuple[int, int]] = []
    path = cut_slice(source, layers, tmp_path / "slice.gguf", lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert slice_file_bytes(source, layers) == path.stat().st_size


def resident_bytes(what: str) -> int:
    """VmRSS, or VmHWM, its highest value since it was last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not tell {what}")


def test_memory_stays_flat_while_cutting(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = tiny_model("llama", n_embd=1024, num_layers=4)
    Path("/proc/self/clear_refs").write_text("5")
    before_bytes = resident_bytes("VmRSS")
    path = cut_slice(source, LayerRange(0, 4), tmp_path / "slice.gguf")
    grown_bytes = resident_bytes("VmHWM") - before_bytes
    assert path.stat().st_size > 48 * 2**20
    assert grown_bytes < 16 * 2**20


def test_too_little_disk_space_is_refused_with_both_figures(
    tmp_path: Path, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shoal.model.atomic_file.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(ConfigError, match=r"needs \d+ MiB.*0 MiB free"):
        cut_slice(tiny_model("qwen2"), LayerRange(0, 3), tmp_path / "slice.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, tiny_model: TinyModel) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        cut_slice(tiny_model("qwen2"), LayerRange(0, 3), tmp_path / "file" / "slice.gguf")


def test_the_embedding_file_holds_the_table_and_nothing_else(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = ModelFile(tiny_model("gemma3", weights="Q8_0"))
    path = cut_embedding(source.path, tmp_path / "embedding.gguf")
    table = ModelFile(path)
    assert list(table.tensors) == ["token_embd.weight"]
    assert tensor_bytes(table, "token_embd.weight") == tensor_bytes(source, "token_embd.weight")
    assert table.integer("gemma3.embedding_length") == 64
    assert embedding_file_bytes(source.path) == path.stat().st_size


def test_the_same_cut_gives_the_same_bytes(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = tiny_model("gemma3")
    first = cut_slice(source, LayerRange(1, 5), tmp_path / "first.gguf")
    second = cut_slice(source, LayerRange(1, 5), tmp_path / "second.gguf")
    assert first.read_bytes() == second.read_bytes()
