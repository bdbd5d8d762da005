"""From an architecture and a quantisation to what the model asks of machines, in bytes."""

from __future__ import annotations

import math
from typing import Final

from shoal.catalogue.model_shape import MixtureOfExperts, ModelShape, Quantisation
from shoal.core.units import BITS_PER_BYTE
from shoal.planner.model_demand import LayerDemand, ModelDemand

CACHE_VALUE_BYTES: Final = 2.0  # keys and values at 16 bits
STATE_VALUE_BYTES: Final = 4  # recurrent state is kept in float32


def demand_of(
    shape: ModelShape, quantisation: Quantisation, *, cache_value_bytes: float = CACHE_VALUE_BYTES
) -> ModelDemand:
    """`shape` at `quantisation`. cache_value_bytes: of one key or value (2 at f16, 1.0625 at q8_0)."""
    # A tied table is stored once, as the head is.
    table_bits = quantisation.head_bits if shape.is_tied else quantisation.embedding_bits
    table_bytes = _bytes(shape.table_parameters, table_bits)
    per_layer_table = shape.embedding_parameters - shape.table_parameters
    layers = tuple(_layer(shape, index, quantisation, cache_value_bytes) for index in range(shape.num_layers))
    return ModelDemand(
        name=shape.title,
        quantisation=quantisation.title,
        layers=layers,
        row_values=shape.hidden,
        boundary_values=tuple(shape.boundary_values(cut) for cut in range(1, shape.num_layers)),
        embedding_bytes=table_bytes + _bytes(per_layer_table, quantisation.embedding_bits),
        embedding_parameters=shape.embedding_parameters,
        head_bytes=_bytes(shape.table_parameters, quantisation.head_bits),
        head_parameters=shape.table_parameters,
        tied_bytes=table_bytes if shape.is_tied else 0,
        tied_parameters=shape.table_parameters if shape.is_tied else 0,
        trained_context_tokens=shape.context_tokens,
        notes=shape.notes,
    )


def _layer(
    shape: ModelShape, index: int, quantisation: Quantisation, cache_value_bytes: float
) -> LayerDemand:
    layer = shape.layers[index]
    trunk = shape.trunk_parameters(index)
    cache = layer.mixer.cache
    experts = layer.feed_forward if isinstance(layer.feed_forward, MixtureOfExperts) else None
    expert_parameters = experts.expert_parameters(shape.hidden) if experts else 0
    return LayerDemand(
        trunk_bytes=_bytes(trunk, quantisation.trunk_bits),
        trunk_parameters=trunk,
        expert_bytes=_bytes(expert_parameters, quantisation.expert_bits),
        expert_parameters=expert_parameters,
        num_experts=experts.experts if experts else 0,
        experts_per_token=experts.top_k if experts else 0,
        expert_row_values=experts.row_values(shape.hidden) if experts else 0,
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
