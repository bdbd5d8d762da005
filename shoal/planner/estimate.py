"""What a cluster can do with a model: totals, machines needed, latency, throughput, energy and cost.

Pure: everything comes in as values. `floor` figures use the makers' bandwidths and nothing else, so nothing
can beat them; `expected` ones are derated as the catalogue states. The result is plain values, for
tables and for JSON alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.loader import Catalogue
from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.classic import NodeCount, classic_pair
from shoal.planner.cluster import Cluster
from shoal.planner.deployment import (
    Deployment,
    candidate_deployments,
    fastest_for,
    least_latency,
    nodes_in_full,
)
from shoal.planner.layout import holds_a_layer
from shoal.planner.model_demand import ModelDemand
from shoal.planner.pipeline import Pipeline
from shoal.planner.upkeep import Upkeep, upkeep

MANY_STAGES: Final = 3


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all machines. price_usd, rent_usd_per_hour: None where one is not known."""

    num_machines: int
    marketed_ops_per_s: float
    usable_ops_per_s: float
    memory_bytes: int
    usable_memory_bytes: int
    memory_bytes_per_s: float
    power_w: float
    price_usd: float | None
    rent_usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """min_ and max_payload_bytes: a token's row across a cut; 0 for a model of one layer."""

    name: str
    quantisation: str
    parameters: int
    active_parameters: int
    weight_bytes: int
    active_bytes: int
    largest_layer_bytes: int
    kv_bytes_per_token: float
    state_bytes: int
    context_tokens: int
    kv_bytes_per_stream: float
    row_value_bytes: int
    min_payload_bytes: int
    max_payload_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """Machines of one kind that the model needs. weights_nodes: weights alone in all memory;
    usable_nodes: in what is really free; full_nodes: with caches and buffers as well (None:
    buffers alone fill a machine)."""

    kind: str
    memory_bytes: int
    usable_memory_bytes: int
    weights_nodes: int
    usable_nodes: int
    full_nodes: int | None
    holds_a_layer: bool


@dataclass(frozen=True, slots=True)
class OneStream:
    """A stream alone. floor_s = floor_memory_s + hops_s. bound: what the slowest stage waits for."""

    machines: int
    is_whole_layers: bool
    floor_s: float
    floor_memory_s: float
    hops_s: float
    expected_s: float
    prompt_tokens: int
    prefill_s: float
    read_bytes_per_token: float
    wire_bytes_per_token: float
    bound: str


@dataclass(frozen=True, slots=True)
class Throughput:
    """All streams together. streams_*: with the number asked for; full_*: with as many as help.
    *_machines: in the deployment that is fastest for it. streams_at_once: of those asked for, how many
    it serves at the same time; others wait, because that is faster for all."""

    streams: int
    streams_at_once: int
    streams_machines: int
    streams_tok_per_s: float
    full_streams: int
    full_machines: int
    full_pipelines: int
    full_tok_per_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """model and what follows are None where only machines were named; classic is empty otherwise."""

    cluster: str
    link: str
    totals: Totals
    classic: tuple[NodeCount, ...] = ()
    model: ModelFacts | None = None
    needs: tuple[NodeNeed, ...] = ()
    one_stream: OneStream | None = None
    throughput: Throughput | None = None
    upkeep: Upkeep | None = None
    remarks: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def estimate_cluster(cluster: Cluster, link: LinkKind, catalogue: Catalogue) -> Estimate:
    """Totals, and the classic pair of models on the commonest kind of machine."""
    kind = max(cluster.members, key=lambda member: member[1])[0]
    return Estimate(
        cluster=str(cluster),
        link=link.title,
        totals=totals(cluster),
        classic=classic_pair(kind, catalogue),
        remarks=(
            "the classic pair counts weights alone, in all of the memory, in parts that no engine cuts; "
            "name a --model for a real one",
        ),
        unverified=unverified(cluster, link),
    )


def estimate_model(
    cluster: Cluster, model: ModelDemand, link: LinkKind, assumptions: Assumptions
) -> Estimate:
    """Everything. Raises DoesNotFit, saying what is missing, where the cluster cannot hold the model."""
    one = least_latency(model, cluster, link, assumptions)
    candidates = candidate_deployments(model, cluster, link, assumptions)
    many = fastest_for(candidates, None)
    return Estimate(
        cluster=str(cluster),
        link=link.title,
        totals=totals(cluster),
        model=model_facts(model, assumptions),
        needs=tuple(node_need(model, kind, assumptions) for kind, _ in cluster.members),
        one_stream=one_stream(one),
        throughput=throughput(candidates, assumptions.streams),
        upkeep=upkeep(many, assumptions),
        remarks=tuple(_remarks(cluster, model, one, many)),
        unverified=unverified(cluster, link),
    )


def totals(cluster: Cluster) -> Totals:
    return Totals(
        num_machines=cluster.num_machines,
        marketed_ops_per_s=cluster.marketed_ops_per_s,
        usable_ops_per_s=cluster.usable_ops_per_s,
        memory_bytes=cluster.memory_bytes,
        usable_memory_bytes=cluster.usable_memory_bytes,
        memory_bytes_per_s=cluster.memory_bytes_per_s,
        power_w=cluster.power_w,
        price_usd=cluster.price_usd,
        rent_usd_per_hour=cluster.rent_usd_per_hour,
    )


def model_facts(model: ModelDemand, assumptions: Assumptions) -> ModelFacts:
    row_value_bytes = assumptions.row_value_bytes
    values = model.boundary_values or (0,)
    return ModelFacts(
        name=model.name,
        quantisation=model.quantisation,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        weight_bytes=model.weight_bytes,
        active_bytes=model.active_bytes,
        largest_layer_bytes=max(layer.weight_bytes for layer in model.layers),
        kv_bytes_per_token=model.kv_bytes_per_token,
        state_bytes=model.state_bytes,
        context_tokens=assumptions.context_tokens,
        kv_bytes_per_stream=model.kv_bytes(assumptions.context_tokens),
        row_value_bytes=row_value_bytes,
        min_payload_bytes=min(values) * row_value_bytes,
        max_payload_bytes=max(values) * row_value_bytes,
        notes=model.notes,
    )


def node_need(model: ModelDemand, kind: MachineKind, assumptions: Assumptions) -> NodeNeed:
    return NodeNeed(
        kind=kind.title,
        memory_bytes=kind.memory_bytes,
        usable_memory_bytes=kind.usable_memory_bytes,
        weights_nodes=cost_model.nodes_for_bytes(model.weight_bytes, kind.memory_bytes),
        usable_nodes=cost_model.nodes_for_bytes(model.weight_bytes, kind.usable_memory_bytes),
        full_nodes=nodes_in_full(model, kind, assumptions),
        holds_a_layer=holds_a_layer(model, kind, assumptions),
    )


def one_stream(pipeline: Pipeline) -> OneStream:
    floor, hops = pipeline.token_s(is_printed=True), sum(pipeline.hops_s(1))
    return OneStream(
        machines=pipeline.num_machines,
        is_whole_layers=pipeline.is_whole_layers,
        floor_s=floor,
        floor_memory_s=floor - hops,
        hops_s=hops,
        expected_s=pipeline.token_s(),
        prompt_tokens=pipeline.assumptions.prompt_tokens,
        prefill_s=pipeline.prefill_s(pipeline.assumptions.prompt_tokens),
        read_bytes_per_token=pipeline.read_bytes_per_token,
        wire_bytes_per_token=pipeline.wire_bytes_per_token,
        bound=pipeline.bound,
    )


def throughput(candidates: Sequence[Deployment], streams: int) -> Throughput:
    few, many = fastest_for(candidates, streams), fastest_for(candidates, None)
    return Throughput(
        streams=streams,
        streams_at_once=min(streams, few.max_streams),
        streams_machines=few.num_machines,
        streams_tok_per_s=few.tok_per_s(streams),
        full_streams=many.saturating_streams,
        full_machines=many.num_machines,
        full_pipelines=many.num_pipelines,
        full_tok_per_s=many.tok_per_s(many.saturating_streams),
    )


def unverified(cluster: Cluster, link: LinkKind) -> tuple[str, ...]:
    """Catalogue values behind the figures that nobody has verified, for people."""
    found = [
        f"{kind.title}: {', '.join(field.replace('_', ' ') for field in kind.unverified)}"
        for kind, _ in cluster.members
        if kind.unverified
    ]
    in_link = [name for name, origin in link.provenance.items() if origin.is_unverified]
    return (*found, *([f"{link.title}: {', '.join(in_link)}"] if in_link else []))


def _remarks(cluster: Cluster, model: ModelDemand, one: Pipeline, many: Deployment) -> list[str]:
    remarks = []
    if not one.is_whole_layers:
        remarks.append(
            "no machine holds a whole layer, so the figures are for a thought experiment: weights cut "
            "anywhere, one machine working after the other; `shoal assess` prices tensor and expert splits"
        )
    if one.num_machines < cluster.num_machines:
        remarks.append(
            f"one stream uses {one.num_machines:,} of {cluster.num_machines:,} machines: further ones add "
            "hops and no speed"
        )
    elif one.num_machines >= MANY_STAGES:
        remarks.append(
            "one stream waits for every machine in turn: it is no faster than a single machine "
            "that held the whole model would be"
        )
    if many.num_machines < cluster.num_machines:
        remarks.append(
            f"throughput uses {many.num_machines:,} of {cluster.num_machines:,} machines; the others are "
            "spares"
        )
    return remarks
