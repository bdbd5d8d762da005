"""Properties of layouts over random machines: whole, within memory, and as balanced as can be."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.catalogue.machine import MachineKind
from shoal.core.specs import LayerRange
from shoal.planner import cost_model
from shoal.planner.cost_model import StepShape
from shoal.planner.layout import Layouts
from shoal.planner.model_demand import ModelDemand
from tests.unit.planner.toys import ASSUMED, LAYER, WIRE, machine, model

MODELS = st.lists(st.integers(1, 40), min_size=1, max_size=9).map(
    lambda sizes: model(*(replace(LAYER, trunk_bytes=10 * size) for size in sizes), head_bytes=30)
)
MACHINES = st.lists(st.tuples(st.integers(100, 1500), st.integers(1, 20)), min_size=1, max_size=4).map(
    lambda figures: [
        machine(f"m{index}", memory=memory, bandwidth=10.0 * speed)
        for index, (memory, speed) in enumerate(figures)
    ]
)


def test_layouts_that_are_shared_tell_kinds_of_machines_apart() -> None:
    fast, slow = machine("fast", memory=2000, bandwidth=400.0), machine("slow", memory=2000)
    ten = model(*[LAYER] * 10)
    shared = Layouts(ten, WIRE, ASSUMED)
    shared.balance([slow, slow])
    assert shared.balance([fast, slow]) == Layouts(ten, WIRE, ASSUMED).balance([fast, slow])


@settings(deadline=None, max_examples=200)
@given(MODELS, MACHINES)
def test_a_layout_covers_all_layers_once_and_fits_every_memory(
    demand: ModelDemand, machines: list[MachineKind]
) -> None:
    layouts = Layouts(demand, WIRE, ASSUMED)
    for pipeline in (layouts.fill_fastest(machines), layouts.balance(machines)):
        if pipeline is None:
            continue
        bounds = [0, *(stage.piece.layers.end for stage in pipeline.stages)]
        assert [stage.piece.layers for stage in pipeline.stages] == [
            LayerRange(start, end) for start, end in itertools.pairwise(bounds)
        ]
        assert bounds[-1] == demand.num_layers
        assert pipeline.max_streams >= ASSUMED.streams
        assert pipeline.memory_margin >= 1


@settings(deadline=None, max_examples=200)
@given(MODELS, MACHINES)
def test_balancing_finds_what_trying_every_cut_finds(
    demand: ModelDemand, machines: list[MachineKind]
) -> None:
    found = Layouts(demand, WIRE, ASSUMED).balance(machines)
    best = _by_trying_every_cut(demand, machines)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert max(found.decode_stage_s(1)) <= best * 1.002


def _by_trying_every_cut(demand: ModelDemand, machines: list[MachineKind]) -> float | None:
    """The least slowest stage over all ways to cut the layers for the machines in order of speed."""
    ordered = sorted(machines, key=lambda kind: kind.speed.memory_bytes_per_s, reverse=True)
    step = StepShape.decode(1, ASSUMED.context_tokens)
    best: float | None = None
    for ends in itertools.combinations_with_replacement(range(demand.num_layers + 1), len(ordered) - 1):
        bounds = [0, *ends, demand.num_layers]
        slowest = 0.0
        for kind, (start, end) in zip(ordered, itertools.pairwise(bounds), strict=True):
            if start == end:
                continue
            piece = demand.slice_demand(LayerRange(start, end))
            if piece.weight_bytes + 4 * 4 * 4 > kind.usable_memory_bytes:
                break
            slowest = max(slowest, cost_model.slice_time(piece, step, kind.speed).total_s)
        else:
            best = slowest if best is None else min(best, slowest)
    return best
