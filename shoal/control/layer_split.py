"""Which layers each node gets. Pure: sizes, speeds and memory in, layer ranges out.

The last stage's LM head counts for less than layers of its size. Knows nothing of processes; where
the model may be cut is told by its architecture (`shoal.model`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError, IllegalCut, InsufficientMemory
from shoal.core.placement import NodeId
from shoal.core.specs import LayerRange, ModelSpec

PROCESS_BYTES = 300 * 2**20  # Python, Ray, llama.cpp and their work buffers, measured
REPACKED_WEIGHTS = 1.45  # weights may be held twice in part: repacked for the CPU, beside the file
HEAD_SHARE = 0.7
"""Of the head's bytes, what counts in a stage's cost: every token of an answer is computed with it, a
prompt's are not, and its kind (Q6_K in a Q4_K_M file) is cheaper by the byte (docs/PERFORMANCE.md)."""
ROW_BYTES_PER_EMBD = 4  # boundary rows are float32


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or one of several pretended on one machine.

    speed: relative to the others. machine: nodes with the same name share `usable_bytes`.
    """

    node: NodeId
    machine: str
    usable_bytes: int
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What sessions take beside the weights. cells: tokens over all sessions. journal_bytes: the
    bound of a worker's journal. bytes_per_f16_byte: of what F16 keys and values would take."""

    cells: int
    journal_bytes: int
    bytes_per_f16_byte: float = 1.0


def ranges_of_cuts(num_layers: int, cuts: Sequence[int]) -> tuple[LayerRange, ...]:
    """The layer ranges between `cuts`, each the first layer of a later stage."""
    bounds = [0, *cuts, num_layers]
    return tuple(LayerRange(start, end) for start, end in itertools.pairwise(bounds))


def check_cuts(spec: ModelSpec, legal_cuts: Sequence[int], cuts: Sequence[int]) -> tuple[LayerRange, ...]:
    """The ranges that the operator asked for.

    Raises IllegalCut naming the cut at fault and the legal ones.
    """
    if list(cuts) != sorted(set(cuts)):
        raise IllegalCut(
            f"Cuts {_listed(cuts)} are not in rising order.", next_step="Write them like --cuts 8,16."
        )
    for cut in cuts:
        if cut not in legal_cuts:
            raise IllegalCut(
                f"{spec.name} ({spec.num_layers} layers) cannot be cut before layer {cut}.",
                next_step=f"Legal cuts are {_as_ranges(legal_cuts)}.",
            )
    return ranges_of_cuts(spec.num_layers, cuts)


def split_layers(
    spec: ModelSpec, legal_cuts: Sequence[int], nodes: Sequence[Node], cache: CacheNeed
) -> tuple[LayerRange, ...]:
    """Split all layers over the nodes in their order, so that the slowest stage is as fast as can be.

    A stage's cost is `stage_cost` over its node's speed; a split that fits every node's
    memory wins over one that does not (which `check_memory` then refuses with the numbers).
    Raises ConfigError when there are more nodes than the model has pieces.
    """
    num_pieces = len(legal_cuts) + 1
    if len(nodes) > num_pieces:
        raise ConfigError(
            f"{spec.name} has {spec.num_layers} layers and can be cut into at most {num_pieces} slices, "
            f"but {len(nodes)} nodes were asked for.",
            next_step=f"Use --nodes {num_pieces} or fewer.",
        )
    cuts = _cheapest_cuts(spec, legal_cuts, nodes, cache)
    if cuts is None:
        cuts = _cheapest_cuts(spec, legal_cuts, nodes, None)
    assert cuts is not None, "without a memory bound every count of nodes up to num_pieces has a split"
    return ranges_of_cuts(spec.num_layers, cuts)


def stage_cost(spec: ModelSpec, layers: LayerRange) -> float:
    """What a stage's time is taken to grow with: weight bytes, of the head only HEAD_SHARE."""
    head_bytes = spec.head_bytes if layers.end == spec.num_layers else 0
    return spec.slice_bytes(layers) - (1 - HEAD_SHARE) * head_bytes


def worker_bytes(spec: ModelSpec, layers: LayerRange, cache: CacheNeed) -> int:
    """Memory that a worker of `layers` may come to use."""
    # Journal entries exist only for tokens that also hold a cell.
    journal = min(cache.journal_bytes, cache.cells * spec.n_embd * ROW_BYTES_PER_EMBD)
    kv = math.ceil(cache.cells * spec.slice_kv_bytes_per_token(layers) * cache.bytes_per_f16_byte)
    table = spec.embedding_bytes if layers.start == 0 else 0
    return math.ceil(REPACKED_WEIGHTS * spec.slice_bytes(layers)) + table + kv + journal + PROCESS_BYTES


def check_memory(
    spec: ModelSpec, ranges: Sequence[LayerRange], nodes: Sequence[Node], cache: CacheNeed
) -> None:
    """Raise InsufficientMemory for the first node whose worker does not fit what is left there."""
    left_bytes = {node.machine: node.usable_bytes for node in nodes}
    for node, layers in zip(nodes, ranges, strict=True):
        need = worker_bytes(spec, layers, cache)
        if need > left_bytes[node.machine]:
            raise InsufficientMemory(
                node=node.node,
                layers=str(layers),
                need_bytes=need,
                usable_bytes=max(0, left_bytes[node.machine]),
            )
        left_bytes[node.machine] -= need


def _cheapest_cuts(
    spec: ModelSpec, legal_cuts: Sequence[int], nodes: Sequence[Node], cache: CacheNeed | None
) -> list[int] | None:
    """The cuts with the least (slowest stage, sum of squares); None if no split fits `cache`.

    Dynamic programme over (nodes used, layers covered): nodes * cuts^2 steps.
    """
    bounds = [0, *legal_cuts, spec.num_layers]
    pairs = list(itertools.combinations(range(len(bounds)), 2))
    ranges = {(i, j): LayerRange(bounds[i], bounds[j]) for i, j in pairs}
    costs = {pair: stage_cost(spec, layers) for pair, layers in ranges.items()}
    needs = {pair: worker_bytes(spec, layers, cache) if cache else 0 for pair, layers in ranges.items()}

    # best[j]: the cheapest way for the nodes so far to cover [0, bounds[j]).
    best = {0: _Cover(0.0, 0.0, None, 0)}
    for node in nodes:
        following: dict[int, _Cover] = {}
        for (i, j), cost in costs.items():
            if i not in best or needs[i, j] > node.usable_bytes:
                continue
            candidate = best[i].with_stage(cost / node.speed, bounds[j])
            if j not in following or candidate.cost < following[j].cost:
                following[j] = candidate
        best = following
    complete = best.get(len(bounds) - 1)
    return None if complete is None else complete.cuts()


@dataclass(frozen=True, slots=True)
class _Cover:
    """Stages that cover `[0, end)`, as a chain back to the first."""

    slowest: float
    squares: float
    before: _Cover | None
    end: int

    @property
    def cost(self) -> tuple[float, float]:
        return self.slowest, self.squares

    def with_stage(self, stage_cost: float, end: int) -> _Cover:
        return _Cover(max(self.slowest, stage_cost), self.squares + stage_cost**2, self, end)

    def cuts(self) -> list[int]:
        ends = []
        cover = self.before
        while cover is not None and cover.before is not None:
            ends.append(cover.end)
            cover = cover.before
        return ends[::-1]


def _listed(cuts: Sequence[int]) -> str:
    return ",".join(str(cut) for cut in cuts)


def _as_ranges(cuts: Sequence[int]) -> str:
    """`[1, 2, 3, 7]` as "1 to 3, 7"."""
    if not cuts:
        return "none: this model cannot be cut"
    runs: list[list[int]] = []
    for cut in cuts:
        if runs and cut == runs[-1][1] + 1:
            runs[-1][1] = cut
        else:
            runs.append([cut, cut])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
