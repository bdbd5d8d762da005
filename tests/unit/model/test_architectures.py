"""What may be cut, where, and what is refused with which reason."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from shoal.core.errors import ModelFileError, UnsupportedModel
from shoal.core.specs import LayerRange
from shoal.model.architectures import RULES, rule_for
from shoal.model.gguf_file import ModelFile
from tests.support.tiny_models import ARCHITECTURES
from tests.unit.model.conftest import TinyModel


def write_stub(path: Path, architecture: str, *, tensors: tuple[str, ...] = (), **keys: object) -> ModelFile:
    """A file with metadata and a few one-row tensors, for what is refused by its header."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = key.replace("__", ".")
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, str(value))
    for tensor in ("token_embd.weight", *tensors):
        writer.add_tensor(tensor, np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFile(path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_listed_architecture_has_a_rule(tiny_model: TinyModel, architecture: str) -> None:
    assert rule_for(ModelFile(tiny_model(architecture))).name == architecture


def test_no_other_architecture_has_one() -> None:
    assert set(RULES) == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ["kimi-k3", "deepseek4", "glm5-next", "gemma3n", "gemma4"])
def test_models_with_several_residual_streams_are_refused_by_name_and_reason(
    tmp_path: Path, architecture: str
) -> None:
    model = write_stub(tmp_path / "model.gguf", architecture)
    with pytest.raises(UnsupportedModel, match=rf"'{architecture}'.*residual stream"):
        rule_for(model)


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"'novel-net'.*no cutting rule.*gemma3, llama, qwen2"):
        rule_for(write_stub(tmp_path / "model.gguf", "novel-net"))


def test_a_part_of_a_split_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = write_stub(tmp_path / "part.gguf", "llama", split__count=3, split__no=1)
    with pytest.raises(UnsupportedModel, match=r"part 2 of a model split into 3 files.*--merge"):
        rule_for(model)


@pytest.mark.parametrize("tensor", ["output.bias", "cls.weight", "output.scale"])
def test_a_tensor_without_a_place_is_refused(tmp_path: Path, tensor: str) -> None:
    with pytest.raises(UnsupportedModel, match=tensor):
        rule_for(write_stub(tmp_path / "model.gguf", "qwen2", tensors=(tensor,)))


@pytest.mark.parametrize("key", ["llama__embedding_scale", "llama__nextn_predict_layers"])
def test_a_key_that_no_rule_accounts_for_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=key.replace("__", ".")):
        rule_for(write_stub(tmp_path / "model.gguf", "llama", **{key: 1}))


def test_a_projector_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'mmproj'"):
        rule_for(write_stub(tmp_path / "model.gguf", "llama", general__type="mmproj"))


def test_gemma3_slides_in_five_of_six_layers_by_default(tiny_model: TinyModel) -> None:
    model = ModelFile(tiny_model("gemma3", num_layers=13))
    shape = rule_for(model).shape(model)
    assert [layer for layer in range(13) if not shape.is_sliding[layer]] == [5, 11]


def test_gemma3_follows_the_period_and_the_array_that_a_file_states(tmp_path: Path) -> None:
    keys = {"gemma3__block_count": 4, "gemma3__attention__sliding_window": 16}
    blocks = tuple(f"blk.{layer}.attn_q.weight" for layer in range(4))
    key = "gemma3__attention__sliding_window_pattern"
    period = write_stub(tmp_path / "period.gguf", "gemma3", tensors=blocks, **keys, **{key: 2})
    array = write_stub(
        tmp_path / "array.gguf", "gemma3", tensors=blocks, **keys, **{key: [True, True, False, True]}
    )
    wrong = write_stub(tmp_path / "wrong.gguf", "gemma3", tensors=blocks, **keys, **{key: [True, False]})
    assert RULES["gemma3"].shape(period).is_sliding == (True, False, True, False)
    assert RULES["gemma3"].shape(array).is_sliding == (True, True, False, True)
    with pytest.raises(ModelFileError, match="2 entries for 4 layers"):
        RULES["gemma3"].shape(wrong)


def test_a_gemma3_slice_needs_a_sliding_layer(tiny_model: TinyModel) -> None:
    model = ModelFile(tiny_model("gemma3", num_layers=12))
    rule = rule_for(model)
    shape = rule.shape(model)
    assert "sliding window" in (rule.why_illegal(shape, LayerRange(5, 6)) or "")
    assert rule.why_illegal(shape, LayerRange(4, 6)) is None
    assert rule.why_illegal(shape, LayerRange(0, 1)) is None


@pytest.mark.parametrize("layers", [(-1, 2), (2, 2), (3, 2), (0, 7), (6, 7)])
def test_a_range_outside_the_model_is_illegal(tiny_model: TinyModel, layers: tuple[int, int]) -> None:
    model = ModelFile(tiny_model("llama"))
    rule = rule_for(model)
    assert rule.why_illegal(rule.shape(model), LayerRange(*layers)) is not None


def test_an_absurd_number_of_layers_is_refused(tmp_path: Path) -> None:
    model = write_stub(tmp_path / "model.gguf", "llama", llama__block_count=2**31)
    with pytest.raises(ModelFileError, match="claims 2147483648 layers"):
        RULES["llama"].shape(model)


def test_only_gemma3_scales_its_token_rows() -> None:
    assert RULES["gemma3"].embedding_factor(640) == pytest.approx(640**0.5)
    assert {RULES[name].embedding_factor(640) for name in RULES if name != "gemma3"} == {1.0}


def test_the_query_scale_of_gemma3_27b_is_folded_into_its_slices(tiny_model: TinyModel) -> None:
    # n_embd / n_head is 16 there and the head dimension 32.
    model = ModelFile(tiny_model("gemma3", num_layers=62))
    rule = RULES["gemma3"]
    wanted = (32 / 16) ** 0.5
    assert rule.tensor_factor(model, LayerRange(0, 31), "attn_q_norm.weight") == pytest.approx(wanted)
    assert rule.tensor_factor(model, LayerRange(0, 62), "attn_q_norm.weight") == 1.0
    assert rule.tensor_factor(model, LayerRange(0, 31), "attn_k_norm.weight") == 1.0
    small = ModelFile(tiny_model("gemma3"))
    assert rule.tensor_factor(small, LayerRange(0, 3), "attn_q_norm.weight") == 1.0
