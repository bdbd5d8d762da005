"""How one cell serves: which machines, which layers on each, what fits, how long a load takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.catalogue.machine import MachineKind
from shoal.core.errors import ConfigError
from shoal.core.placement import NodeId
from shoal.core.specs import LayerRange
from shoal.core.units import bytes_text
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.layout import Layouts
from shoal.planner.model_demand import ModelDemand, SliceDemand
from shoal.planner.pipeline import Pipeline, buffer_bytes
from shoal.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class CellPlan:
    """machines: kind of each, by name; those of the stages first, in order. pipeline: the stages."""

    machines: dict[NodeId, MachineKind]
    pipeline: Pipeline
    scenario: Scenario

    @property
    def model(self) -> ModelDemand:
        return self.scenario.model

    @property
    def ranges(self) -> tuple[LayerRange, ...]:
        return tuple(stage.piece.layers for stage in self.pipeline.stages)

    @property
    def pieces(self) -> dict[LayerRange, SliceDemand]:
        return {stage.piece.layers: stage.piece for stage in self.pipeline.stages}

    @property
    def slice_bytes(self) -> dict[LayerRange, int]:
        """Weights, caches of all streams and work buffers."""
        serving = self.scenario.serving
        buffers = buffer_bytes(self.model, self.pipeline.assumptions)
        return {
            layers: int(
                cost_model.slice_memory_bytes(
                    piece,
                    num_sequences=serving.streams,
                    context_tokens=serving.context_tokens,
                    buffer_bytes=buffers,
                )
            )
            for layers, piece in self.pieces.items()
        }

    def load_s(self, layers: LayerRange) -> float:
        """Until a fresh machine has the weights of `layers`."""
        return self.pieces[layers].weight_bytes / self.scenario.load_bytes_per_s


def deal_machines(scenario: Scenario) -> list[list[MachineKind]]:
    """Machines of each cell: like with like, as the scenario lists them; the last cell has the rest."""
    kinds = [kind for kind, count in scenario.cluster.members for _ in range(count)]
    size, cells = scenario.serving.cell_machines, scenario.num_cells
    return [kinds[i * size : (i + 1) * size if i < cells - 1 else None] for i in range(cells)]


def plan_cell(
    scenario: Scenario, kinds: Sequence[MachineKind], number: int, layouts: Layouts | None = None
) -> CellPlan:
    """Lay the model over the cell's fastest machines but for `spares`, so that the slowest stage is as
    fast as can be. Raises ConfigError where it does not fit."""
    serving = scenario.serving
    layouts = layouts or make_layouts(scenario)
    ordered = sorted(kinds, key=lambda kind: kind.speed.memory_bytes_per_s, reverse=True)
    pipeline = layouts.balance(ordered[: len(ordered) - serving.spares])
    if pipeline is None:
        model = f"{scenario.model.name} ({scenario.model.quantisation})"
        raise ConfigError(
            f"A cell of {len(kinds)} machines, {serving.spares} of them spare, cannot hold "
            f"{model}, {bytes_text(scenario.model.weight_bytes)}, with {serving.streams} streams of "
            f"{serving.context_tokens} tokens; it has "
            f"{bytes_text(sum(kind.usable_memory_bytes for kind in kinds))} usable.",
            next_step="Raise cell_machines, or lower streams, context or spares in [serving].",
        )
    used = [stage.machine for stage in pipeline.stages]
    others = list(ordered)
    for kind in used:
        others.remove(kind)
    names = [NodeId(f"c{number}m{index}") for index in range(len(kinds))]
    return CellPlan(dict(zip(names, [*used, *others], strict=True)), pipeline, scenario)


def make_layouts(scenario: Scenario) -> Layouts:
    """Layouts of the scenario's model; shared by equal cells, so that each slice is weighed once."""
    serving = scenario.serving
    given = Assumptions(
        usd_per_kwh=scenario.usd_per_kwh,
        lifetime_s=scenario.lifetime_s,
        notice_s=scenario.notice_s,
        context_tokens=serving.context_tokens,
        streams=serving.streams,
        chunk_tokens=serving.chunk_tokens,
        row_value_bytes=serving.row_value_bytes,
        max_step_tokens=max(serving.streams, 1),
    )
    return Layouts(scenario.model, scenario.link, given)
