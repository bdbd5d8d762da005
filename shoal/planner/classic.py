"""The thought experiment everybody starts with: a round number of parameters over identical machines.

It counts weights alone, at a round number of bits, in all of a machine's memory. The sums printed for it
often carry the same few slips, so those are counted here beside the right result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.loader import Catalogue
from shoal.catalogue.machine import MachineKind
from shoal.catalogue.model_anatomy import ModelAnatomy, Quantisation
from shoal.core.units import BITS_PER_BYTE, GIB
from shoal.planner import cost_model

PAIR: Final = (("llama-7b", "f16"), ("llama-70b", "bare-4bit"))


@dataclass(frozen=True, slots=True)
class NodeCount:
    """Machines that hold the weights alone.

    exact_nodes: before rounding up. slips: other counts in print, with the slip behind each.
    usable_nodes: with the memory that is really free. real_*: the real model's parameters at a
    format that exists. chain_s: one token through all machines one after the other, reading what
    each holds at the printed bandwidth.
    """

    model: str
    quantisation: str
    parameters: float
    weight_bytes: float
    exact_nodes: float
    nodes: int
    slips: tuple[tuple[int, str], ...]
    usable_nodes: int
    real_parameters: int
    real_quantisation: str
    real_weight_bytes: float
    real_nodes: int
    chain_s: float


def classic_pair(kind: MachineKind, catalogue: Catalogue) -> tuple[NodeCount, ...]:
    """The 7B model at 16 bits and the 70B model at 4, on machines of `kind`."""
    return tuple(
        count_nodes(catalogue.model(model), catalogue.quantisation(quantisation), kind, catalogue)
        for model, quantisation in PAIR
    )


def count_nodes(
    anatomy: ModelAnatomy, quantisation: Quantisation, kind: MachineKind, catalogue: Catalogue
) -> NodeCount:
    """nodes = ceil(parameters * bits / 8 / memory), rounded once, at the end."""
    real = _real_parameters(anatomy)
    parameters = anatomy.nominal_parameters or real
    weight_bytes = parameters * quantisation.trunk_bits / BITS_PER_BYTE
    exact = weight_bytes / kind.memory_bytes
    # No format stores four bits and nothing else; the least that exists takes half a bit of scales.
    stored = catalogue.quantisation("q4_0") if quantisation.name == "bare-4bit" else quantisation
    real_bytes = real * stored.trunk_bits / BITS_PER_BYTE
    return NodeCount(
        model=anatomy.title,
        quantisation=quantisation.title,
        parameters=parameters,
        weight_bytes=weight_bytes,
        exact_nodes=exact,
        nodes=cost_model.nodes_for_bytes(weight_bytes, kind.memory_bytes),
        slips=_slips(weight_bytes, kind),
        usable_nodes=cost_model.nodes_for_bytes(weight_bytes, kind.usable_memory_bytes),
        real_parameters=real,
        real_quantisation=stored.title,
        real_weight_bytes=real_bytes,
        real_nodes=cost_model.nodes_for_bytes(real_bytes, kind.memory_bytes),
        chain_s=weight_bytes / kind.memory_bytes_per_s,
    )


def _slips(weight_bytes: float, kind: MachineKind) -> tuple[tuple[int, str], ...]:
    """Counts that differ from the right one, and how one arrives at them."""
    right = cost_model.nodes_for_bytes(weight_bytes, kind.memory_bytes)
    down = math.floor(weight_bytes / kind.memory_bytes)
    gib_down = math.floor(math.floor(weight_bytes / GIB) * GIB / kind.memory_bytes)
    slips = {
        gib_down: f"{weight_bytes / GIB:.2f} GiB rounded down to {math.floor(weight_bytes / GIB)} before "
        "dividing",
        down: f"{weight_bytes / kind.memory_bytes:.2f} rounded down instead of up",
    }
    return tuple((count, reason) for count, reason in sorted(slips.items()) if 0 < count < right)


def _real_parameters(anatomy: ModelAnatomy) -> int:
    table = anatomy.table_parameters if not anatomy.is_tied else 0
    layers = sum(anatomy.trunk_parameters(layer) for layer in range(anatomy.num_layers))
    return layers + anatomy.embedding_parameters + table
