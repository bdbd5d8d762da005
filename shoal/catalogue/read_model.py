"""A model's table in a catalogue file, read into a ModelAnatomy; and a quantisation's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from shoal.catalogue.layer_pattern import expand
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
    Quantisation,
)
from shoal.catalogue.provenance import Provenance
from shoal.catalogue.toml_table import TomlTable
from shoal.core.names import nearest_text

T = TypeVar("T")


def read_model(name: str, table: TomlTable) -> ModelAnatomy:
    """Raises ConfigError naming file, line and field."""
    title, aliases, notes = table.label("title"), table.texts("aliases"), table.texts("notes")
    provenance = table.provenance
    mixers = _parts(table, "mixer", _MIXERS, provenance)
    feed_forwards = _parts(table, "feed_forward", _FEED_FORWARDS, provenance)
    mixer_order = _order(table, "mixers", mixers)
    feed_forward_order = _order(table, "feed_forwards", feed_forwards)
    if len(mixer_order) != len(feed_forward_order):
        raise table.error(
            "feed_forwards", f"names {len(feed_forward_order)} layers, but mixers {len(mixer_order)}"
        )
    anatomy = ModelAnatomy(
        name=name,
        title=title,
        hidden=table.integer("hidden", least=1),
        vocabulary=table.integer("vocabulary", least=1),
        context_tokens=table.integer("context", least=1),
        layers=tuple(
            LayerAnatomy(mixers[mixer], feed_forwards[feed_forward])
            for mixer, feed_forward in zip(mixer_order, feed_forward_order, strict=True)
        ),
        is_tied=table.flag("tied"),
        streams=table.integer("streams", 1, least=1),
        bank_layers=table.optional_integer("bank_layers"),
        per_layer_input=table.integer("per_layer_input", 0),
        norms_per_layer=table.integer("norms_per_layer", 2),
        native=table.text("native") if table.has("native") else None,
        nominal_parameters=table.optional_number("nominal_parameters"),
        aliases=aliases,
        notes=notes,
        provenance=provenance,
    )
    table.end()
    return anatomy


def read_quantisation(name: str, table: TomlTable) -> Quantisation:
    title, aliases = table.label("title"), table.texts("aliases")
    trunk_bits = table.number("trunk_bits")
    quantisation = Quantisation(
        name=name,
        title=title,
        trunk_bits=trunk_bits,
        expert_bits=table.optional_number("expert_bits") or trunk_bits,
        embedding_bits=table.optional_number("embedding_bits") or trunk_bits,
        head_bits=table.optional_number("head_bits") or trunk_bits,
        aliases=aliases,
        provenance=table.provenance,
    )
    table.end()
    return quantisation


def _parts(
    table: TomlTable,
    key: str,
    readers: Mapping[str, Callable[[TomlTable], T]],
    provenance: dict[str, Provenance],
) -> dict[str, T]:
    found = {}
    for name, part in table.tables(key).items():
        kind = part.label("kind")
        if kind not in readers:
            raise part.error("kind", f"is {kind!r}, which is no {key}{nearest_text(kind, readers)}")
        found[name] = readers[kind](part)
        part.end()
        provenance.update({f"{key}.{name}.{field}": origin for field, origin in part.provenance.items()})
    return found


def _order(table: TomlTable, key: str, parts: Mapping[str, object]) -> tuple[str, ...]:
    try:
        names = expand(table.text(key))
    except ValueError as error:
        raise table.error(key, str(error)) from error
    for name in names:
        if name not in parts:
            raise table.error(key, f"names {name!r}, which is not described{nearest_text(name, parts)}")
    return names


def _attention(table: TomlTable) -> Mixer:
    return GroupedQueryAttention(
        heads=table.integer("heads", least=1),
        kv_heads=table.integer("kv_heads", least=1),
        head_dim=table.integer("head_dim", least=1),
        window=table.optional_integer("window"),
        has_output_gate=table.flag("output_gate"),
        has_bias=table.flag("bias"),
        has_output_bias=table.flag("output_bias"),
        has_qk_norm=table.flag("qk_norm"),
        has_sinks=table.flag("sinks"),
        shares_projection=table.flag("shared_projection"),
        borrows_cache=table.flag("borrowed_cache"),
        top_tokens=table.optional_integer("top_tokens"),
    )


def _latent(table: TomlTable) -> Mixer:
    return LatentAttention(
        heads=table.integer("heads", least=1),
        q_lora=table.optional_integer("q_lora"),
        kv_lora=table.integer("kv_lora", least=1),
        qk_nope=table.integer("qk_nope", least=1),
        qk_rope=table.integer("qk_rope", least=1),
        v_dim=table.integer("v_dim", least=1),
        has_output_gate=table.flag("output_gate"),
        indexer=_indexer(table),
    )


def _compressed(table: TomlTable) -> Mixer:
    return CompressedAttention(
        heads=table.integer("heads", least=1),
        head_dim=table.integer("head_dim", least=1),
        q_lora=table.integer("q_lora", least=1),
        o_lora=table.integer("o_lora", least=1),
        o_groups=table.integer("o_groups", least=1),
        window=table.integer("window", least=1),
        ratio=table.optional_integer("ratio"),
        indexer=_indexer(table),
    )


def _indexer(table: TomlTable) -> Indexer | None:
    heads = table.optional_integer("index_heads")
    dim, top = table.optional_integer("index_dim"), table.optional_integer("index_top")
    if heads is None and dim is None and top is None:
        return None
    if heads is None or dim is None or top is None:
        raise table.error("index_heads", "must stand together with index_dim and index_top")
    return Indexer(heads=heads, dim=dim, top_tokens=top)


def _gated_delta(table: TomlTable) -> Mixer:
    return GatedDeltaNet(
        key_heads=table.integer("key_heads", least=1),
        value_heads=table.integer("value_heads", least=1),
        key_dim=table.integer("key_dim", least=1),
        value_dim=table.integer("value_dim", least=1),
        conv=table.integer("conv", least=1),
    )


def _kimi_delta(table: TomlTable) -> Mixer:
    return KimiDeltaAttention(
        heads=table.integer("heads", least=1),
        head_dim=table.integer("head_dim", least=1),
        conv=table.integer("conv", least=1),
        has_full_gate=table.flag("full_gate"),
    )


def _dense(table: TomlTable) -> FeedForward:
    return DenseFeedForward(inner=table.integer("inner", least=1))


def _experts(table: TomlTable) -> FeedForward:
    experts, top_k = table.integer("experts", least=1), table.integer("top_k", least=1)
    if top_k > experts:
        raise table.error("top_k", f"is {top_k}, more than the {experts} experts")
    return MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        inner=table.integer("inner", least=1),
        shared_inner=table.integer("shared_inner", 0),
        latent=table.optional_integer("latent"),
        dense_inner=table.integer("dense_inner", 0),
        has_bias=table.flag("bias"),
        has_shared_gate=table.flag("shared_gate"),
    )


_MIXERS: Final[Mapping[str, Callable[[TomlTable], Mixer]]] = {
    "attention": _attention,
    "latent": _latent,
    "compressed": _compressed,
    "gated-delta": _gated_delta,
    "kimi-delta": _kimi_delta,
}
_FEED_FORWARDS: Final[Mapping[str, Callable[[TomlTable], FeedForward]]] = {
    "dense": _dense,
    "experts": _experts,
}
