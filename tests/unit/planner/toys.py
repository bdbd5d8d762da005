"""Small machines, links and models with round figures, whose results can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from shoal.catalogue.machine import Derating, LinkKind, MachineKind
from shoal.planner.assumptions import Assumptions
from shoal.planner.cluster import Cluster
from shoal.planner.model_demand import LayerDemand, ModelDemand

EXACT = Derating(
    memory=1.0, compute=1.0, few_rows=1.0, matrix_min_rows=1, step_overhead_s=0.0, layer_overhead_s=0.0
)

LAYER = LayerDemand(trunk_bytes=100, trunk_parameters=100)
EXPERT_LAYER = LayerDemand(
    trunk_bytes=50,
    trunk_parameters=50,
    expert_bytes=100,
    expert_parameters=100,
    num_experts=8,
    experts_per_token=2,
    expert_row_values=4,
)
CACHED_LAYER = replace(LAYER, kv_bytes_per_token=1.0)

WIRE = LinkKind("wire", "wire", latency_s=0.5, software_s=0.5, bytes_per_s=1000.0)

ASSUMED = Assumptions(
    usd_per_kwh=0.1,
    lifetime_s=3600.0 * 1000,
    notice_s=2.0,
    context_tokens=10,
    prompt_tokens=8,
    streams=1,
    chunk_tokens=4,
    row_value_bytes=2,
    max_step_tokens=4,
)


def machine(
    name: str = "box", *, memory: int = 2000, bandwidth: float = 100.0, ops: float = 1e9, **fields: float
) -> MachineKind:
    return MachineKind(
        name=name,
        title=name,
        group="toy",
        memory_bytes=memory,
        usable_memory_bytes=memory,
        memory_bytes_per_s=bandwidth,
        marketed_ops_per_s=ops,
        usable_ops_per_s=ops,
        derating=EXACT,
        link="wire",
        power_w=fields.get("power_w", 100.0),
        price_usd=fields.get("price_usd", 360.0),
        rent_usd_per_hour=fields.get("rent_usd_per_hour"),
    )


def model(*layers: LayerDemand, head_bytes: int = 0, row_values: int = 1) -> ModelDemand:
    return ModelDemand(
        name="toy",
        quantisation="toy",
        layers=layers,
        row_values=row_values,
        boundary_values=(row_values,) * (len(layers) - 1),
        embedding_bytes=0,
        embedding_parameters=0,
        head_bytes=head_bytes,
        head_parameters=head_bytes,
        tied_bytes=0,
        tied_parameters=0,
        trained_context_tokens=1000,
    )


def cluster(*members: tuple[MachineKind, int]) -> Cluster:
    return Cluster(members)
