"""How a cluster would serve a model: one or more pipelines, chosen for one aim.

Compares a few honest candidates rather than searching for an optimum: for least latency the fewest of the
fastest machines; for throughput copies of that pipeline, and longer balanced ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.core.errors import ConfigError
from shoal.core.units import bytes_text
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.cluster import Cluster
from shoal.planner.layout import Layouts, holds_a_layer
from shoal.planner.model_demand import ModelDemand
from shoal.planner.pipeline import Pipeline, buffer_bytes


class DoesNotFit(ConfigError):
    """The machines cannot hold the model with its caches."""

    code = "does_not_fit"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Pipelines with the number of copies of each; copies share nothing but the requests."""

    parts: tuple[tuple[Pipeline, int], ...]

    @property
    def num_pipelines(self) -> int:
        return sum(copies for _, copies in self.parts)

    @property
    def num_machines(self) -> int:
        return sum(copies * pipeline.num_machines for pipeline, copies in self.parts)

    @property
    def power_w(self) -> float:
        """Of the machines that it uses."""
        return sum(
            copies * stage.machine.power_w for pipeline, copies in self.parts for stage in pipeline.stages
        )

    @property
    def max_streams(self) -> int:
        """Streams that fit the memory of all pipelines."""
        return sum(copies * pipeline.max_streams for pipeline, copies in self.parts)

    def tok_per_s(self, streams: int) -> float:
        """Of `streams` streams over all pipelines; slow pipelines are left idle where that is faster."""
        if streams >= self.saturating_streams:
            return sum(
                copies * pipeline.decode_tok_per_s(_saturating(pipeline)) for pipeline, copies in self.parts
            )
        ordered = sorted(self.parts, key=lambda part: part[0].token_s())
        wanted = min(streams, self.max_streams)
        return max(_spread_evenly(ordered[:used], wanted) for used in range(1, len(ordered) + 1))

    @property
    def saturating_streams(self) -> int:
        """Streams beyond which nothing is gained: every step in flight full, or memory at its end."""
        return sum(copies * _saturating(pipeline) for pipeline, copies in self.parts)


def least_latency(model: ModelDemand, cluster: Cluster, link: LinkKind, assumptions: Assumptions) -> Pipeline:
    """The pipeline for one stream. Raises DoesNotFit with what is missing."""
    layouts = Layouts(model, link, assumptions)
    found = layouts.fill_fastest(_candidates(model, cluster, assumptions))
    if found is not None:
        return found
    kind, num_machines = _pieces(model, cluster, assumptions)
    return layouts.even_pieces(kind, num_machines)


def candidate_deployments(
    model: ModelDemand, cluster: Cluster, link: LinkKind, assumptions: Assumptions
) -> tuple[Deployment, ...]:
    """What is worth comparing. Raises DoesNotFit with what is missing for all streams at the same time.

    Some have room for fewer streams than are asked for, and let others wait: caches of all of them may
    push layers to machines so slow that everybody would be served later.
    """
    layouts = Layouts(model, link, assumptions)
    found = [*_layered(layouts, model, cluster, assumptions)]
    if not found:
        return tuple(_in_pieces(layouts, model, cluster, assumptions))
    if len(cluster.members) > 1:
        streams = assumptions.streams
        while (streams := streams * 7 // 8) > 0:
            fewer = replace(assumptions, streams=streams)
            found += _layered(Layouts(model, link, fewer), model, cluster, fewer)
    return tuple(found)


def fastest_for(candidates: Sequence[Deployment], streams: int | None) -> Deployment:
    """The candidate with most tokens a second with `streams` streams; None: each at its saturation."""
    return max(candidates, key=lambda found: found.tok_per_s(streams or found.saturating_streams))


def _saturating(pipeline: Pipeline) -> int:
    return min(pipeline.max_streams, pipeline.full_streams)


def _spread_evenly(parts: Sequence[tuple[Pipeline, int]], streams: int) -> float:
    """Tokens a second of `streams` streams over these pipelines, each up to its room."""
    left, pipelines, total = streams, sum(copies for _, copies in parts), 0.0
    for pipeline, copies in parts:
        own = min(-(-left * copies // pipelines), copies * pipeline.max_streams)
        left, pipelines = left - own, pipelines - copies
        busy = min(copies, own)
        if busy:
            more = own % busy  # pipelines with one stream more than the others
            total += (busy - more) * pipeline.decode_tok_per_s(own // busy)
            total += more * pipeline.decode_tok_per_s(own // busy + 1) if more else 0.0
    return total


def full_need_bytes(model: ModelDemand, assumptions: Assumptions) -> float:
    """Weights, a tied table's second copy, and the caches of all streams."""
    caches = assumptions.streams * model.kv_bytes(assumptions.context_tokens)
    return model.weight_bytes + model.tied_bytes + caches


def nodes_in_full(model: ModelDemand, kind: MachineKind, assumptions: Assumptions) -> int | None:
    """Machines of `kind` for weights, caches of all streams and work buffers, cut anywhere. None
    where the buffers alone fill a machine."""
    room = kind.usable_memory_bytes - buffer_bytes(model, assumptions)
    if room <= 0:
        return None
    return cost_model.nodes_for_bytes(full_need_bytes(model, assumptions), room)


def _layered(
    layouts: Layouts, model: ModelDemand, cluster: Cluster, assumptions: Assumptions
) -> Iterator[Deployment]:
    """One pipeline over everything; and copies of pipelines of one kind, with one over what is left."""
    everything = layouts.balance(_candidates(model, cluster, assumptions))
    if everything is not None:
        yield Deployment(((everything, 1),))
    for width in (1, 2, 4, 8):
        parts: list[tuple[Pipeline, int]] = []
        left: list[MachineKind] = []
        for kind, count in cluster.members:
            fewest = layouts.fill_fastest([kind] * min(count, model.num_layers))
            size = 0 if fewest is None else min(fewest.num_machines * width, count, model.num_layers)
            pipeline = layouts.balance([kind] * size) if size else None
            if pipeline is not None:
                parts.append((pipeline, count // size))
                count %= size
            left += [kind] * min(count, model.num_layers)
        rest = layouts.balance(left) if left else None
        if rest is not None:
            parts.append((rest, 1))
        if parts:
            yield Deployment(tuple(parts))


def _in_pieces(
    layouts: Layouts, model: ModelDemand, cluster: Cluster, assumptions: Assumptions
) -> Iterator[Deployment]:
    """Copies of a pipeline of even pieces; longer ones have more room for streams, so more in flight."""
    kind, fewest = _pieces(model, cluster, assumptions)
    count = next(count for member, count in cluster.members if member is kind)
    width = 1
    while width * fewest <= count:
        yield Deployment(((layouts.even_pieces(kind, width * fewest), count // (width * fewest)),))
        width *= 2


def _candidates(model: ModelDemand, cluster: Cluster, assumptions: Assumptions) -> list[MachineKind]:
    """No pipeline has more stages than layers, so more machines of a kind need not be looked at."""
    return [
        kind
        for kind, count in cluster.members
        if holds_a_layer(model, kind, assumptions)
        for _ in range(min(count, model.num_layers))
    ]


def _pieces(model: ModelDemand, cluster: Cluster, assumptions: Assumptions) -> tuple[MachineKind, int]:
    """The kind of machine that holds the model in even pieces, and how many of them."""
    for kind, count in sorted(cluster.members, key=lambda member: member[1], reverse=True):
        needed = nodes_in_full(model, kind, assumptions)
        if needed is not None and needed <= count and not holds_a_layer(model, kind, assumptions):
            return kind, needed
    raise _does_not_fit(model, cluster, assumptions)


def _does_not_fit(model: ModelDemand, cluster: Cluster, assumptions: Assumptions) -> DoesNotFit:
    need, usable = full_need_bytes(model, assumptions), cluster.usable_memory_bytes
    largest = max(layer.weight_bytes for layer in model.layers)
    facts = (
        f"{model.name} ({model.quantisation}) does not fit {cluster}: with {assumptions.streams} streams of "
        f"{assumptions.context_tokens} tokens it needs {bytes_text(need)}, and {bytes_text(usable)} of "
        f"{bytes_text(cluster.memory_bytes)} are usable"
    )
    if need <= usable:
        facts += f"; whole layers of up to {bytes_text(largest)} leave gaps"
    kind = cluster.members[0][0]
    nodes = nodes_in_full(model, kind, assumptions)
    hint = "" if nodes is None else f"About {math.ceil(nodes * 1.05):,} x {kind.title} would hold it. "
    return DoesNotFit(
        facts + ".",
        next_step=f"{hint}Fewer streams, a shorter --context or a smaller --quant need less.",
    )
