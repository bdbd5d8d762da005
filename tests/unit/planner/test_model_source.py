"""The forms that a model can have on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.errors import ConfigError, ModelFileError, UnsupportedModel
from shoal.core.specs import LayerRange
from shoal.model.slicing import cut_slice
from shoal.model.spec_reader import read_spec
from shoal.planner.gguf_demand import read_gguf_demand
from shoal.planner.model_source import find_model
from tests.support.real_models import gemma_path
from tests.support.tiny_models import ARCHITECTURES, Architecture, write_tiny_model


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gguf_file_is_counted_as_the_slicer_counts_it(tmp_path: Path, architecture: Architecture) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture)
    demand, spec = read_gguf_demand(path), read_spec(path)
    assert tuple(layer.weight_bytes for layer in demand.layers) == spec.layer_bytes
    assert tuple(layer.kv_bytes_per_token for layer in demand.layers) == spec.kv_bytes_per_token
    assert demand.embedding_bytes == spec.embedding_bytes
    assert demand.head_bytes >= spec.head_bytes
    assert set(demand.boundary_values) == {spec.n_embd}


def test_a_token_reads_its_experts_and_no_others(tmp_path: Path) -> None:
    demand = read_gguf_demand(write_tiny_model(tmp_path / "tiny.gguf", "qwen3moe"))
    layer = demand.layers[0]
    assert layer.num_experts > layer.experts_per_token > 0
    assert layer.active_bytes == layer.trunk_bytes + layer.experts_per_token * layer.expert_bytes
    assert layer.expert_row_values == demand.row_values


def test_a_sliding_window_bounds_the_cache(tmp_path: Path) -> None:
    demand = read_gguf_demand(write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=12))
    windows = [layer.kv_window_tokens for layer in demand.layers]
    assert [window is None for window in windows] == [False] * 5 + [True] + [False] * 5 + [True]


def test_a_real_file_counts_like_the_catalogue(catalogue: Catalogue) -> None:
    demand = read_gguf_demand(gemma_path())
    known = find_model("gemma-3-270m", "q4_k_m", catalogue)
    assert demand.parameters == pytest.approx(known.parameters, rel=1e-5)
    assert demand.kv_bytes(4096) == known.kv_bytes(4096)


def test_a_tied_table_is_stored_once_as_the_head_is(catalogue: Catalogue) -> None:
    tied = find_model("gemma-3-270m", "q4_k_m", catalogue)
    assert tied.embedding_bytes == tied.tied_bytes == tied.head_bytes
    assert tied.head_bytes == pytest.approx(262_144 * 640 * 6.5625 / 8)
    untied = find_model("qwen3-8b", "q4_k_m", catalogue)
    assert untied.tied_bytes == 0
    assert untied.embedding_bytes == pytest.approx(151_936 * 4096 * 4.5 / 8)


def test_a_slice_of_a_model_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    cut_slice(whole, LayerRange(0, 3), tmp_path / "piece.gguf")
    with pytest.raises(UnsupportedModel, match="part of a model"):
        read_gguf_demand(tmp_path / "piece.gguf")


def test_a_catalogue_name_comes_as_published_unless_told_otherwise(catalogue: Catalogue) -> None:
    assert find_model("kimi-k3", None, catalogue).quantisation.startswith("MXFP4")
    assert find_model("kimi-k3", "q4_0", catalogue).quantisation.startswith("4.5 bits")


def test_a_config_file_or_its_folder_is_a_model(catalogue: Catalogue, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "vocab_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    by_folder = find_model(str(tmp_path), "q8_0", catalogue)
    by_file = find_model(str(tmp_path / "config.json"), "q8_0", catalogue)
    assert by_folder == by_file
    assert by_folder.num_layers == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "7"])
def test_a_config_that_is_none_is_refused(catalogue: Catalogue, tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        find_model(str(path), None, catalogue)


def test_a_gguf_file_keeps_its_own_quantisation(catalogue: Catalogue, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    assert find_model(str(path), None, catalogue).num_layers == 6
    with pytest.raises(ConfigError, match="own quantisation"):
        find_model(str(path), "q4_0", catalogue)


def test_a_missing_file_and_an_unknown_name_are_told_apart(catalogue: Catalogue) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf"):
        find_model("absent.gguf", None, catalogue)
    with pytest.raises(ConfigError, match="kimi-k3"):
        find_model("kimi-k4", None, catalogue)
    with pytest.raises(ConfigError, match="q4_0"):
        find_model("kimi-k3", "q4_00", catalogue)
