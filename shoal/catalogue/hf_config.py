"""A Hugging Face `config.json`, read into a model's anatomy.

Only families whose layers are known exactly: a guess would count other weights than the model has, and
nobody would notice. Takes the parsed file; reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shoal.catalogue.hf_fields import HfFields
from shoal.catalogue.mixers import (
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
    KimiDeltaAttention,
    LatentAttention,
    Mixer,
)
from shoal.catalogue.model_anatomy import (
    DenseFeedForward,
    FeedForward,
    LayerAnatomy,
    MixtureOfExperts,
    ModelAnatomy,
)
from shoal.core.errors import ConfigError
from shoal.core.names import nearest_text

GEMMA_PERIOD: Final = 6
QWEN_FULL_INTERVAL: Final = 4


def read_hf_config(config: Mapping[str, Any], *, name: str, where: str) -> ModelAnatomy:
    """The anatomy of the model that `config` describes; `where` names the file in errors.

    Raises ConfigError for an unknown model_type, a missing or malformed field.
    """
    outer = HfFields(config, where)
    fields = outer.nested("text_config") if outer.has("text_config") else outer
    model_type = fields.text("model_type")
    family = _FAMILIES.get(model_type)
    if family is None:
        raise ConfigError(
            f"{where} has the model_type {model_type!r}, whose layers are not known here"
            f"{nearest_text(model_type, _FAMILIES)}.",
            next_step=f"Known: {', '.join(sorted(_FAMILIES))}. A catalogue file of your own can describe it.",
        )
    num_layers = fields.integer("num_hidden_layers")
    mixers, feed_forwards = family(fields, num_layers)
    is_gemma = model_type.startswith("gemma")
    return ModelAnatomy(
        name=name,
        title=name,
        hidden=fields.integer("hidden_size"),
        vocabulary=fields.integer("vocab_size"),
        context_tokens=fields.integer("max_position_embeddings"),
        layers=tuple(LayerAnatomy(*pair) for pair in zip(mixers, feed_forwards, strict=True)),
        # Gemma's configuration leaves its default away.
        is_tied=outer.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", is_gemma)),
        streams=fields.integer("hc_mult", 1),
        per_layer_input=fields.integer("hidden_size_per_layer_input", 0),
        norms_per_layer=4 if is_gemma else 2,
    )


Layers = tuple[Sequence[Mixer], Sequence[FeedForward]]


def _dense(fields: HfFields, num_layers: int) -> Layers:
    mixer = _grouped(fields)
    return [mixer] * num_layers, [DenseFeedForward(fields.integer("intermediate_size"))] * num_layers


def _qwen2(fields: HfFields, num_layers: int) -> Layers:
    return [_grouped(fields, has_bias=True)] * num_layers, _dense(fields, num_layers)[1]


def _qwen3(fields: HfFields, num_layers: int) -> Layers:
    return [_grouped(fields, has_qk_norm=True)] * num_layers, _dense(fields, num_layers)[1]


def _routed(fields: HfFields, num_layers: int) -> Layers:
    """Qwen3 MoE, MiniMax M2."""
    experts = MixtureOfExperts(
        experts=fields.integer("num_experts", "num_local_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        inner=fields.integer("moe_intermediate_size", "intermediate_size"),
    )
    return [_grouped(fields, has_qk_norm=True)] * num_layers, [experts] * num_layers


def _glm4_moe(fields: HfFields, num_layers: int) -> Layers:
    has_norm = fields.flag("use_qk_norm", False)
    mixer = _grouped(fields, has_bias=fields.flag("attention_bias", True), has_qk_norm=has_norm)
    return [mixer] * num_layers, _deepseek_feed_forwards(fields, num_layers)


def _gpt_oss(fields: HfFields, num_layers: int) -> Layers:
    window = fields.integer("sliding_window")
    common: dict[str, Any] = {"has_bias": True, "has_output_bias": True, "has_sinks": True}
    local, full = _grouped(fields, window=window, **common), _grouped(fields, **common)
    experts = MixtureOfExperts(
        experts=fields.integer("num_local_experts"),
        top_k=fields.integer("num_experts_per_tok", "experts_per_token"),
        inner=fields.integer("intermediate_size"),
        has_bias=True,
    )
    types = fields.layer_types(num_layers, ["sliding_attention", "full_attention"])
    return [local if kind == "sliding_attention" else full for kind in types], [experts] * num_layers


def _qwen35(fields: HfFields, num_layers: int) -> Layers:
    """Qwen3-Next, Qwen3.5, dense and with experts."""
    interval = fields.integer("full_attention_interval", QWEN_FULL_INTERVAL)
    period = ["linear_attention"] * (interval - 1) + ["full_attention"]
    full = _grouped(fields, has_output_gate=True, has_qk_norm=True)
    recurrent = GatedDeltaNet(
        key_heads=fields.integer("linear_num_key_heads"),
        value_heads=fields.integer("linear_num_value_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv=fields.integer("linear_conv_kernel_dim"),
    )
    types = fields.layer_types(num_layers, period)
    return [full if kind == "full_attention" else recurrent for kind in types], [
        _qwen35_feed_forward(fields)
    ] * num_layers


def _qwen35_feed_forward(fields: HfFields) -> FeedForward:
    if not fields.has("num_experts"):
        return DenseFeedForward(fields.integer("intermediate_size"))
    return MixtureOfExperts(
        experts=fields.integer("num_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        inner=fields.integer("moe_intermediate_size"),
        shared_inner=fields.integer("shared_expert_intermediate_size", 0),
        has_shared_gate=True,
    )


def _deepseek(fields: HfFields, num_layers: int) -> Layers:
    """DeepSeek V3, Kimi K2, GLM 5."""
    return [_latent(fields)] * num_layers, _deepseek_feed_forwards(fields, num_layers)


def _latent(fields: HfFields) -> LatentAttention:
    return LatentAttention(
        heads=fields.integer("num_attention_heads"),
        q_lora=fields.optional_integer("q_lora_rank"),
        kv_lora=fields.integer("kv_lora_rank"),
        qk_nope=fields.integer("qk_nope_head_dim"),
        qk_rope=fields.integer("qk_rope_head_dim"),
        v_dim=fields.integer("v_head_dim"),
        indexer=_indexer(fields),
    )


def _indexer(fields: HfFields) -> Indexer | None:
    if not fields.has("index_n_heads"):
        return None
    return Indexer(
        heads=fields.integer("index_n_heads"),
        dim=fields.integer("index_head_dim"),
        top_tokens=fields.integer("index_topk"),
    )


def _deepseek_feed_forwards(fields: HfFields, num_layers: int) -> list[FeedForward]:
    inner = fields.integer("moe_intermediate_size")
    experts = MixtureOfExperts(
        experts=fields.integer("n_routed_experts", "num_experts"),
        top_k=fields.integer("num_experts_per_tok", "num_experts_per_token"),
        inner=inner,
        shared_inner=inner * fields.integer("n_shared_experts", "num_shared_experts"),
    )
    num_dense = min(fields.integer("first_k_dense_replace", 0), num_layers)
    dense = [DenseFeedForward(fields.integer("intermediate_size"))] * num_dense if num_dense else []
    return [*dense, *[experts] * (num_layers - num_dense)]


def _deepseek4(fields: HfFields, num_layers: int) -> Layers:
    ratios = fields.integers("compress_ratios")
    if len(ratios) < num_layers:
        raise fields.error("compress_ratios", f"has {len(ratios)} entries for {num_layers} layers")
    mixers = [_compressed(fields, ratio) for ratio in ratios[:num_layers]]
    return mixers, _deepseek_feed_forwards(fields, num_layers)


def _compressed(fields: HfFields, ratio: int) -> CompressedAttention:
    return CompressedAttention(
        heads=fields.integer("num_attention_heads"),
        head_dim=fields.integer("head_dim"),
        q_lora=fields.integer("q_lora_rank"),
        o_lora=fields.integer("o_lora_rank"),
        o_groups=fields.integer("o_groups"),
        window=fields.integer("sliding_window"),
        ratio=ratio or None,
        # Only the finely compressed layers choose what they read.
        indexer=_indexer(fields) if ratio == 4 else None,
    )


def _kimi_linear(fields: HfFields, num_layers: int) -> Layers:
    linear = fields.nested("linear_attn_config")
    recurrent = KimiDeltaAttention(
        heads=linear.integer("num_heads"),
        head_dim=linear.integer("head_dim"),
        conv=linear.integer("short_conv_kernel_size"),
        has_full_gate=False,
    )
    full_layers = set(linear.integers("full_attn_layers"))  # counted from 1
    latent = _latent(fields)
    mixers: list[Mixer] = [latent if layer + 1 in full_layers else recurrent for layer in range(num_layers)]
    return mixers, _deepseek_feed_forwards(fields, num_layers)


def _gemma3(fields: HfFields, num_layers: int) -> Layers:
    period = fields.integer("sliding_window_pattern", GEMMA_PERIOD)
    types = fields.layer_types(num_layers, ["sliding_attention"] * (period - 1) + ["full_attention"])
    local = _grouped(fields, window=fields.integer("sliding_window"), has_qk_norm=True)
    full = _grouped(fields, has_qk_norm=True)
    mixers = [local if kind == "sliding_attention" else full for kind in types]
    return mixers, _dense(fields, num_layers)[1]


def _grouped(fields: HfFields, **features: Any) -> GroupedQueryAttention:
    heads = fields.integer("num_attention_heads")
    features.setdefault("has_bias", fields.flag("attention_bias", False))
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", fields.integer("hidden_size") // heads),
        **features,
    )


_FAMILIES: Final[Mapping[str, Callable[[HfFields, int], Layers]]] = {
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _routed,
    "minimax_m2": _routed,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "qwen3_next": _qwen35,
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek,
    "kimi_k2": _deepseek,
    "glm_moe_dsa": _deepseek,
    "deepseek_v4": _deepseek4,
    "kimi_linear": _kimi_linear,
    "gemma3_text": _gemma3,
}
