"""Scenarios over toy machines whose times can be worked out by hand: a layer takes 10 ms for a step of
few tokens, a hop 2 ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.catalogue.failure import Exponential, FailureModel
from shoal.catalogue.machine import LinkKind
from shoal.simulator.lengths import Fixed
from shoal.simulator.scenario import Churn, Mode, Scenario, Serving
from shoal.simulator.workload import Poisson, Workload
from tests.unit.planner.toys import LAYER, cluster, machine, model

LAYER_S = 0.010
HOP_S = 0.002
HOP = LinkKind("hop", "hop", latency_s=0.001, software_s=0.001, bytes_per_s=1e9)
SHAKY = FailureModel("shaky", "shaky", uptime=Exponential(40.0), repair=Exponential(25.0))

SERVING = Serving(cell_machines=4, streams=8, context_tokens=4096, chunk_tokens=4, max_waiting=1000)


def scenario(*, num_machines: int = 4, num_layers: int = 4, **changes: Any) -> Scenario:
    """num_machines equal machines, and a model of num_layers equal layers that only weights make slow."""
    kind = machine(memory=250, bandwidth=LAYER.trunk_bytes / LAYER_S, ops=1e12)
    base = Scenario(
        name="toy",
        mode=Mode.FINE,
        cluster=cluster((kind, num_machines)),
        model=model(*[LAYER] * num_layers),
        link=HOP,
        duration_s=60.0,
        serving=replace(SERVING, cell_machines=num_machines),
        workload=Workload(Poisson(1.0), Fixed(1), Fixed(1)),
        churn=None,
        load_bytes_per_s=1000.0,
        notice_s=2.0,
        usd_per_kwh=0.1,
        lifetime_s=3600.0 * 1000,
    )
    return replace(base, **changes)


def shaky(**changes: Any) -> Scenario:
    """Six machines that keep leaving, one spare and a standby to be kept."""
    return scenario(
        num_machines=6,
        serving=replace(SERVING, cell_machines=6, spares=2, survive=1, max_waiting=5),
        workload=Workload(Poisson(2.0), Fixed(9), Fixed(20)),
        churn=Churn(SHAKY, polite_share=0.3, grace_s=5.0),
        **changes,
    )
