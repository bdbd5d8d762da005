"""What the same model costs on a rented GPU server: the yardstick for everything else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.loader import Catalogue
from shoal.catalogue.machine import MachineKind
from shoal.core.errors import ConfigError
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.cluster import Cluster
from shoal.planner.deployment import DoesNotFit, candidate_deployments, fastest_for, nodes_in_full
from shoal.planner.model_demand import ModelDemand

GPUS_PER_SERVER: Final = 8
ONE_MORE: Final = 1.15  # whole layers leave gaps, so a little more than the exact count may be needed
MAX_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Reference:
    """gpus: fewest that hold the model, in a row by layers over `link`. tok_per_s: saturated, times the
    share of hours with work."""

    title: str
    gpus: int
    link: str
    tok_per_s: float
    usd_per_hour: float
    usd_per_million: float
    is_unverified: bool


def reference_server(
    model: ModelDemand, kind: MachineKind, catalogue: Catalogue, assumptions: Assumptions
) -> Reference:
    """The fewest rented GPUs of `kind` that hold the model, at saturation.

    Tensor parallelism inside the server is not modelled; at saturation a pipeline keeps every GPU
    as busy. Raises ConfigError where `kind` has no rent.
    """
    if kind.rent_usd_per_hour is None:
        raise ConfigError(f"{kind.title} has no rent in the catalogue, so it cannot be the yardstick.")
    gpus = nodes_in_full(model, kind, assumptions) or 1
    for _ in range(MAX_TRIES):
        link = catalogue.link("nvlink" if gpus <= GPUS_PER_SERVER else "infiniband")
        try:
            found = candidate_deployments(model, Cluster(((kind, gpus),)), link, assumptions)
        except DoesNotFit:
            gpus = max(gpus + 1, math.ceil(gpus * ONE_MORE))
            continue
        best = fastest_for(found, None)
        rate = best.tok_per_s(best.saturating_streams) * assumptions.used_share
        hourly = kind.rent_usd_per_hour * gpus
        return Reference(
            title=kind.title,
            gpus=gpus,
            link=link.title,
            tok_per_s=rate,
            usd_per_hour=hourly,
            usd_per_million=cost_model.usd_per_million_tokens(hourly, rate),
            is_unverified=kind.provenance["rent"].is_unverified,
        )
    raise DoesNotFit(f"{model.name} ({model.quantisation}) fits no number of {kind.title}.")
