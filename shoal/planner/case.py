"""What all findings of one assessment start from: the layouts, the splits, what was asked."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.catalogue.failure import FailureModel
from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.cluster import Cluster
from shoal.planner.deployment import (
    Deployment,
    DoesNotFit,
    candidate_deployments,
    fastest_for,
    least_latency,
    nodes_in_full,
)
from shoal.planner.layout import Layouts
from shoal.planner.model_demand import ModelDemand
from shoal.planner.pipeline import Pipeline
from shoal.planner.reference_server import Reference
from shoal.planner.splits import SplitCost, compare_splits


@dataclass(frozen=True, slots=True)
class Asked:
    """What people want. token_s: between two tokens of a stream. losses_per_day: machine losses
    that somebody is willing to see. availability: share of time with a complete pipeline."""

    token_s: float = 0.2
    losses_per_day: float = 10.0
    availability: float = 0.99


@dataclass(frozen=True, slots=True)
class Case:
    """kind: the commonest kind of machine, for which the splits are priced. pipeline: for one
    stream. deployment: for all streams at saturation; few: for the streams asked for."""

    cluster: Cluster
    model: ModelDemand
    link: LinkKind
    assumptions: Assumptions
    asked: Asked
    failures: FailureModel
    reference: Reference | None
    kind: MachineKind
    pipeline: Pipeline
    deployment: Deployment
    few: Deployment
    splits: tuple[SplitCost, ...]
    fits: bool
    why_not: str | None

    @property
    def best_split(self) -> SplitCost | None:
        """The fastest that its machines can hold and the cluster has machines for."""
        able = [
            split
            for split in self.splits
            if split.is_possible and split.machines <= self.cluster.num_machines
        ]
        return min(able, key=lambda split: split.token_s, default=None)


def make_case(
    cluster: Cluster,
    model: ModelDemand,
    link: LinkKind,
    assumptions: Assumptions,
    asked: Asked,
    failures: FailureModel,
    reference: Reference | None,
) -> Case:
    kind = max(cluster.members, key=lambda member: member[1])[0]
    why_not = None
    try:
        pipeline = least_latency(model, cluster, link, assumptions)
        candidates = candidate_deployments(model, cluster, link, assumptions)
    except DoesNotFit as error:
        why_not = error.message
        # A chain of as many machines as it would take still has a latency and a cost.
        nodes = nodes_in_full(model, kind, assumptions) or cost_model.nodes_for_bytes(
            model.weight_bytes, kind.usable_memory_bytes
        )
        pipeline = Layouts(model, link, assumptions).even_pieces(kind, nodes)
        candidates = (Deployment(((pipeline, 1),)),)
    return Case(
        cluster=cluster,
        model=model,
        link=link,
        assumptions=assumptions,
        asked=asked,
        failures=failures,
        reference=reference,
        kind=kind,
        pipeline=pipeline,
        deployment=fastest_for(candidates, None),
        few=fastest_for(candidates, assumptions.streams),
        splits=compare_splits(model, kind, link, row_value_bytes=assumptions.row_value_bytes),
        fits=why_not is None,
        why_not=why_not,
    )
