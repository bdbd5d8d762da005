"""A config.json counts like the catalogue's entry of the same model."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.catalogue.hf_config import read_hf_config
from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.errors import ConfigError

COMMON = {"max_position_embeddings": 4096}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-70b": {
        "model_type": "llama", "hidden_size": 8192, "vocab_size": 128256, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "hidden_size": 1024, "vocab_size": 151936, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "vocab_size": 151936, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    },
    "minimax-m2": {
        "model_type": "minimax_m2", "hidden_size": 3072, "vocab_size": 200064, "num_hidden_layers": 62,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536,
        "num_local_experts": 256, "num_experts_per_tok": 8,
    },
    "glm-4.7": {
        "model_type": "glm4_moe", "hidden_size": 5120, "vocab_size": 151552, "num_hidden_layers": 92,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "use_qk_norm": True, "attention_bias": True,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "vocab_size": 201088, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    },
    "qwen3.5-397b-a17b": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 4096, "vocab_size": 248320,
        "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "vocab_size": 129280, "num_hidden_layers": 61,
        "num_attention_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, **MLA,
    },
    "glm-5": {
        "model_type": "glm_moe_dsa", "hidden_size": 6144, "vocab_size": 154880, "num_hidden_layers": 78,
        "num_attention_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, **MLA,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    },
    "deepseek-v4-pro": {
        "model_type": "deepseek_v4", "hidden_size": 7168, "vocab_size": 129280, "num_hidden_layers": 61,
        "num_attention_heads": 128, "head_dim": 512, "q_lora_rank": 1536, "o_lora_rank": 1024,
        "o_groups": 16, "sliding_window": 128, "compress_ratios": [128, *[128, 4] * 30, 0], "hc_mult": 4,
        "moe_intermediate_size": 3072, "n_routed_experts": 384, "n_shared_experts": 1,
        "num_experts_per_tok": 6, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 1024,
    },
    "gemma-3-4b": {
        "model_type": "gemma3_text", "hidden_size": 2560, "vocab_size": 262144, "num_hidden_layers": 34,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240,
        "sliding_window": 1024,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_the_anatomy_of_the_catalogues_model(catalogue: Catalogue, name: str) -> None:
    read = read_hf_config(CONFIGS[name] | COMMON, name=name, where="config.json")
    known = catalogue.model(name)
    assert read.layers == known.layers
    assert (read.hidden, read.vocabulary, read.is_tied) == (known.hidden, known.vocabulary, known.is_tied)
    cuts = range(1, known.num_layers)
    assert [read.boundary_values(cut) for cut in cuts] == [known.boundary_values(cut) for cut in cuts]
    assert read.norms_per_layer == known.norms_per_layer


def test_the_language_model_inside_a_vision_model_is_found() -> None:
    config = {"model_type": "qwen3_5_moe", "text_config": CONFIGS["qwen3.5-397b-a17b"] | COMMON}
    assert read_hf_config(config, name="x", where="config.json").num_layers == 60


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"model_type": "qwen33"}, ["qwen33", "did you mean qwen3"]),
        ({"model_type": None}, ["model_type of config.json is missing"]),
        ({"hidden_size": None, "hiden_size": 1024}, ["hidden_size", "did you mean hiden_size"]),
        ({"hidden_size": -1}, ["hidden_size", "-1", "whole number"]),
        ({"hidden_size": "1024"}, ["hidden_size", "whole number"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "true or false"]),
    ],
)
def test_a_fault_in_a_config_is_named(change: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_hf_config(CONFIGS["qwen3-0.6b"] | COMMON | change, name="x", where="config.json")
    for part in parts:
        assert part in str(caught.value)


def test_layer_types_must_name_every_layer() -> None:
    config = CONFIGS["gpt-oss-20b"] | COMMON | {"layer_types": ["full_attention"]}
    with pytest.raises(ConfigError, match="list of 24"):
        read_hf_config(config, name="x", where="config.json")
