"""A model's figures, and an id that follows its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.specs import LayerRange
from shoal.model.gguf_file import ModelFile
from shoal.model.slicing import slice_file_bytes
from shoal.model.spec_reader import content_id, legal_cuts, read_spec, why_illegal
from tests.support.tiny_models import ARCHITECTURES, write_tiny_model
from tests.unit.model.conftest import TinyModel


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_spec_adds_up_to_the_files_tensors(tiny_model: TinyModel, architecture: str, tied: bool) -> None:
    path = tiny_model(architecture, tied=tied)
    spec = read_spec(path)
    model = ModelFile(path)
    in_file = sum(tensor.num_bytes for tensor in model.tensors.values())
    rope = model.tensors.get("rope_freqs.weight")
    assert (spec.architecture, spec.num_layers, spec.n_embd, spec.n_vocab) == (architecture, 6, 64, 300)
    assert spec.n_ctx_train == 2048
    assert spec.total_bytes == in_file - (rope.num_bytes if rope else 0) + tied * spec.embedding_bytes
    kv_heads = 1 if architecture in ("llama", "qwen2") else 2
    assert spec.kv_bytes_per_token == (kv_heads * (32 + 32) * 2,) * 6


def test_a_slice_file_is_as_large_as_the_spec_says(tmp_path: Path, tiny_model: TinyModel) -> None:
    path = tiny_model("qwen2", n_embd=256)
    spec = read_spec(path)
    for layers in (LayerRange(0, 3), LayerRange(3, 6)):
        assert slice_file_bytes(path, layers) == pytest.approx(spec.slice_bytes(layers), rel=0.03)


def test_legal_cuts_and_single_slices_agree(tiny_model: TinyModel) -> None:
    path = tiny_model("gemma3", num_layers=12)
    assert legal_cuts(path) == tuple(range(1, 11))
    assert why_illegal(path, LayerRange(5, 6)) is not None
    assert why_illegal(path, LayerRange(5, 7)) is None


def test_the_content_id_depends_on_the_content_alone(tmp_path: Path) -> None:
    one = write_tiny_model(tmp_path / "one.gguf", "llama", seed=1)
    same = write_tiny_model(tmp_path / "same.gguf", "llama", seed=1)
    other = write_tiny_model(tmp_path / "other.gguf", "llama", seed=2)
    assert read_spec(one).content_id == read_spec(same).content_id
    assert read_spec(one).content_id != read_spec(other).content_id


@pytest.mark.parametrize("where", ["metadata", "small tensor", "large tensor's first", "large tensor's last"])
def test_the_content_id_notices_one_changed_byte(tmp_path: Path, where: str) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", "llama", n_embd=256)
    model = ModelFile(path)
    before = content_id(model)
    large, small = model.tensor("blk.0.ffn_up.weight"), model.tensor("blk.3.attn_norm.weight")
    assert large.num_bytes > 65536 > small.num_bytes
    content = bytearray(path.read_bytes())
    at = {
        "metadata": content.index(b"tiny-llama"),
        "small tensor": small.start + small.num_bytes // 2,
        "large tensor's first": large.start,
        "large tensor's last": large.start + large.num_bytes - 1,
    }[where]
    content[at] ^= 1
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(content)
    assert content_id(ModelFile(changed)) != before
