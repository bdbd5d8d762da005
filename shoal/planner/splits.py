"""Three ways to cut a model over machines, priced for one token on one link.

Layer split: whole layers in a row; a row of values crosses each cut. Tensor split: every machine of
a group holds a strip of every matrix; two all-reduces a layer. Expert split: a layer's experts
lie on different machines; rows go to the chosen ones and come back. All figures are for one token of
one stream with the makers' memory bandwidth, so they are bounds: no implementation is faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.core.units import bytes_text
from shoal.planner import cost_model
from shoal.planner.model_demand import LayerDemand, ModelDemand

ALL_REDUCES_PER_LAYER: Final = 2  # behind attention, behind the feed-forward block
MAX_GROUP: Final = 1024


@dataclass(frozen=True, slots=True)
class SplitCost:
    """One way to split, for one token.

    machines: that hold the weights. rounds: messages that wait for each other. wire_bytes: over
    all links. memory_s, latency_s, transfer_s: parts of token_s: reading weights on the critical
    path, waiting for messages, moving their bytes. is_possible: whether each machine's part fits it;
    reason says why not. formula: of the rounds and bytes, for people.
    """

    name: str
    machines: int
    rounds: int
    wire_bytes: float
    memory_s: float
    latency_s: float
    transfer_s: float
    is_possible: bool
    reason: str | None
    formula: str

    @property
    def token_s(self) -> float:
        return self.memory_s + self.latency_s + self.transfer_s


def layer_split(model: ModelDemand, kind: MachineKind, link: LinkKind, *, row_value_bytes: int) -> SplitCost:
    """One machine reads its layers, then the next: the sum of all reads, and a message a cut.

    machines = ceil(weights / usable memory), at most one a layer; rounds = machines + 1 (to the first
    and from the last); bytes = rows at evenly spaced cuts. One machine alone needs no round.
    """
    room = kind.usable_memory_bytes
    machines = min(model.num_layers, cost_model.nodes_for_bytes(model.weight_bytes, room))
    largest = max(layer.weight_bytes for layer in model.layers)
    fits = largest <= room
    cuts = machines - 1
    rows = [
        model.payload_bytes(_even_cut(model, index, cuts + 1), bytes_per_value=row_value_bytes)
        for index in range(1, cuts + 1)
    ]
    rounds = cuts + 2 if cuts else 0
    return SplitCost(
        name="layer",
        machines=machines,
        rounds=rounds,
        wire_bytes=float(sum(rows)),
        memory_s=model.active_bytes / kind.memory_bytes_per_s,
        latency_s=rounds * cost_model.hop_s(link, 0),
        transfer_s=sum(rows) / link.bytes_per_s,
        is_possible=fits,
        reason=None if fits else _too_small("a layer", largest, kind),
        formula="rounds = machines + 1; bytes = rows at each cut",
    )


def tensor_split(
    model: ModelDemand,
    kind: MachineKind,
    link: LinkKind,
    *,
    group: int,
    row_value_bytes: int,
) -> SplitCost:
    """`group` machines share every layer of their part; as many groups in a row as the weights need.

    An all-reduce of a row r over g machines (recursive doubling): ceil(log2 g) rounds in which each
    machine sends r. bytes = layers * 2 * g * ceil(log2 g) * r, and rows between groups.
    (Rings move fewer bytes in more rounds; at these sizes rounds decide.)
    """
    room = kind.usable_memory_bytes
    groups = max(1, cost_model.nodes_for_bytes(model.weight_bytes, group * room))
    row = model.row_values * row_value_bytes
    rounds_each = math.ceil(math.log2(group)) if group > 1 else 0
    reduces = ALL_REDUCES_PER_LAYER * model.num_layers
    between = groups + 1 if groups * group > 1 else 0
    strip = max(layer.weight_bytes for layer in model.layers) / group
    fits = strip <= room
    return SplitCost(
        name=f"tensor, groups of {group}",
        machines=groups * group,
        rounds=reduces * rounds_each + between,
        wire_bytes=float(reduces * group * rounds_each * row + max(0, groups - 1) * group * row),
        memory_s=model.active_bytes / group / kind.memory_bytes_per_s,
        latency_s=(reduces * rounds_each + between) * cost_model.hop_s(link, 0),
        transfer_s=(reduces * rounds_each + max(0, groups - 1)) * row / link.bytes_per_s,
        is_possible=fits,
        reason=None if fits else _too_small(f"a strip of 1/{group} of a layer", strip, kind),
        formula="rounds = layers * 2 * log2(group) + groups + 1; "
        "bytes = layers * 2 * group * log2(group) * row",
    )


def expert_split(
    model: ModelDemand, kind: MachineKind, link: LinkKind, *, row_value_bytes: int
) -> SplitCost | None:
    """Trunk machines in a row, as in the layer split, and the experts of each layer around them.

    A token's k experts work at the same time on k machines, so one expert's bytes are read, not k.
    rounds = layers with experts * 2 (there and back) + trunk machines + 1; bytes = layers * 2 * k * row.
    A trunk layer larger than a machine is read piece after piece, one round each. None for a
    model without experts.
    """
    routed = [layer for layer in model.layers if layer.num_experts]
    if not routed:
        return None
    room = kind.usable_memory_bytes
    largest = max(layer.expert_bytes for layer in routed)
    trunk_bytes = sum(layer.trunk_bytes for layer in model.layers) + model.head_bytes
    trunk_machines = cost_model.nodes_for_bytes(trunk_bytes, room)
    expert_machines = sum(_expert_machines(layer, room) for layer in routed)
    rows = [2 * layer.experts_per_token * layer.expert_row_values * row_value_bytes for layer in routed]
    hops = trunk_machines + 1
    rounds = 2 * len(routed) + hops
    trunk_row = model.row_values * row_value_bytes
    # A trunk machine sends its k rows one after the other on its own link, and receives them so.
    transfer = sum(rows) + trunk_machines * trunk_row
    return SplitCost(
        name="expert",
        machines=trunk_machines + expert_machines,
        rounds=rounds,
        wire_bytes=float(transfer),
        memory_s=(trunk_bytes + sum(layer.expert_bytes for layer in routed)) / kind.memory_bytes_per_s,
        latency_s=rounds * cost_model.hop_s(link, 0),
        transfer_s=transfer / link.bytes_per_s,
        is_possible=largest <= room,
        reason=None if largest <= room else _too_small("one expert", largest, kind),
        formula="rounds = expert layers * 2 + trunk machines + 1; "
        "bytes = expert layers * 2 * k * row + rows between trunk machines",
    )


def compare_splits(
    model: ModelDemand, kind: MachineKind, link: LinkKind, *, row_value_bytes: int
) -> tuple[SplitCost, ...]:
    """Layer; tensor with the smallest group that fits and with the fastest one; expert if it has any."""
    layer = layer_split(model, kind, link, row_value_bytes=row_value_bytes)
    tensors = list(_tensor_splits(model, kind, link, row_value_bytes))
    possible = [split for split in tensors if split.is_possible]
    chosen = [possible[0], min(possible, key=lambda split: split.token_s)] if possible else tensors[-1:]
    expert = expert_split(model, kind, link, row_value_bytes=row_value_bytes)
    return tuple(dict.fromkeys([layer, *chosen, *([expert] if expert else [])]))


def _tensor_splits(
    model: ModelDemand, kind: MachineKind, link: LinkKind, row_value_bytes: int
) -> Iterator[SplitCost]:
    group = 2
    while group <= MAX_GROUP:
        yield tensor_split(model, kind, link, group=group, row_value_bytes=row_value_bytes)
        group *= 2


def _even_cut(model: ModelDemand, index: int, pieces: int) -> int:
    return min(model.num_layers - 1, max(1, round(index * model.num_layers / pieces)))


def _expert_machines(layer: LayerDemand, room: int) -> int:
    per_machine = max(1, room // layer.expert_bytes)
    return math.ceil(layer.num_experts / per_machine)


def _too_small(what: str, num_bytes: float, kind: MachineKind) -> str:
    return (
        f"{what} takes {bytes_text(num_bytes)}, and one {kind.title} has "
        f"{bytes_text(kind.usable_memory_bytes)} usable"
    )
