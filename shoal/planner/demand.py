"""From an architecture and a quantisation to what the model asks of machines, in bytes."""

from __future__ import annotations

import math
from typing import Final

from shoal.catalogue.model_anatomy import MixtureOfExperts, ModelAnatomy, Quantisation
from shoal.core.units import BITS_PER_BYTE
from shoal.planner.model_demand import LayerDemand, ModelDemand

CACHE_VALUE_BYTES: Final = 2.0  # keys and values at 16 bits
STATE_VALUE_BYTES: Final = 4  # recurrent state is kept in float32


def demand_of(
    anatomy: ModelAnatomy, quantisation: Quantisation, *, cache_value_bytes: float = CACHE_VALUE_BYTES
) -> ModelDemand:
    """`anatomy` at `quantisation`. cache_value_bytes: of one key or value (2 at f16, 1.0625 at q8_0)."""
    # A tied table is stored once, as the head is.
    table_bits = quantisation.head_bits if anatomy.is_tied else quantisation.embedding_bits
    table_bytes = _bytes(anatomy.table_parameters, table_bits)
    per_layer_table = anatomy.embedding_parameters - anatomy.table_parameters
    layers = tuple(
        _layer(anatomy, index, quantisation, cache_value_bytes) for index in range(anatomy.num_layers)
    )
    return ModelDemand(
        name=anatomy.title,
        quantisation=quantisation.title,
        layers=layers,
        row_values=anatomy.hidden,
        boundary_values=tuple(anatomy.boundary_values(cut) for cut in range(1, anatomy.num_layers)),
        embedding_bytes=table_bytes + _bytes(per_layer_table, quantisation.embedding_bits),
        embedding_parameters=anatomy.embedding_parameters,
        head_bytes=_bytes(anatomy.table_parameters, quantisation.head_bits),
        head_parameters=anatomy.table_parameters,
        tied_bytes=table_bytes if anatomy.is_tied else 0,
        tied_parameters=anatomy.table_parameters if anatomy.is_tied else 0,
        trained_context_tokens=anatomy.context_tokens,
        notes=anatomy.notes,
    )


def _layer(
    anatomy: ModelAnatomy, index: int, quantisation: Quantisation, cache_value_bytes: float
) -> LayerDemand:
    layer = anatomy.layers[index]
    trunk = anatomy.trunk_parameters(index)
    cache = layer.mixer.cache
    experts = layer.feed_forward if isinstance(layer.feed_forward, MixtureOfExperts) else None
    expert_parameters = experts.expert_parameters(anatomy.hidden) if experts else 0
    return LayerDemand(
        trunk_bytes=_bytes(trunk, quantisation.trunk_bits),
        trunk_parameters=trunk,
        expert_bytes=_bytes(expert_parameters, quantisation.expert_bits),
        expert_parameters=expert_parameters,
        num_experts=experts.experts if experts else 0,
        experts_per_token=experts.top_k if experts else 0,
        expert_row_values=experts.row_values(anatomy.hidden) if experts else 0,
        kv_bytes_per_token=cache.per_token * cache_value_bytes,
        kv_window_tokens=cache.window_tokens,
        kv_read_tokens=cache.read_tokens,
        index_bytes_per_token=cache.index_per_token * cache_value_bytes,
        fixed_bytes=math.ceil(cache.fixed * cache_value_bytes),
        state_bytes=cache.state * STATE_VALUE_BYTES,
        attention_ops_per_cached_token=layer.mixer.ops_per_cached_token,
    )


def _bytes(parameters: int, bits: float) -> int:
    return math.ceil(parameters * bits / BITS_PER_BYTE)
