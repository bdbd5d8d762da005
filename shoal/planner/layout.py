"""Laying a model's layers over machines: fastest first and full, balanced, or in even pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.core.specs import LayerRange
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.cost_model import StepShape
from shoal.planner.model_demand import ModelDemand, SliceDemand
from shoal.planner.pipeline import Pipeline, Stage, buffer_bytes

BALANCED_WITHIN: Final = 1e-3  # of the slowest stage's time
MAX_ROUNDS: Final = 60


class Layouts:
    """Layouts of one model over one kind of link. Remembers every slice it has weighed.

    Machines are taken in the order of their memory bandwidth: it decides decode speed.
    """

    def __init__(self, model: ModelDemand, link: LinkKind, assumptions: Assumptions) -> None:
        self._model = model
        self._link = link
        self._assumptions = assumptions
        self._step = StepShape.decode(1, assumptions.context_tokens)
        self._buffers = buffer_bytes(model, assumptions)
        self._needs: dict[LayerRange, tuple[SliceDemand, float]] = {}
        self._times: dict[tuple[str, LayerRange], float] = {}

    def fill_fastest(self, machines: Sequence[MachineKind]) -> Pipeline | None:
        """The fewest of the fastest machines that hold the model with caches for `streams`: least
        latency, since one stream gains nothing from further machines. None where it fits nowhere."""
        return self._lay_out(_fastest_first(machines), math.inf)

    def balance(self, machines: Sequence[MachineKind]) -> Pipeline | None:
        """The layout whose slowest stage is the fastest, by bisection of that time: most throughput."""
        ordered = _fastest_first(machines)
        best = self._lay_out(ordered, math.inf)
        if best is None:
            return None
        low, high = 0.0, self._slowest_s(best)
        for _ in range(MAX_ROUNDS):
            if high - low <= BALANCED_WITHIN * high:
                break
            found = self._lay_out(ordered, (low + high) / 2)
            if found is None:
                low = (low + high) / 2
            else:
                best, high = found, self._slowest_s(found)
        return best

    def even_pieces(self, kind: MachineKind, num_machines: int) -> Pipeline:
        """Equal shares of the weights over `num_machines`, cut anywhere."""
        stage = Stage(kind, self._model.whole, share=1 / num_machines)
        taken = min(1.0, _pieces_touched(self._model, num_machines) / num_machines)
        last = self._model.num_layers - 1
        cuts = [min(last, max(1, round(i * last / num_machines))) for i in range(1, num_machines)]
        return Pipeline(
            self._model,
            (stage,) * num_machines,
            tuple(self._model.boundary_values[cut - 1] for cut in cuts),
            self._link,
            self._assumptions,
            hops_taken=taken,
        )

    def _lay_out(self, ordered: Sequence[MachineKind], slowest_s: float) -> Pipeline | None:
        """Give each machine in turn as many layers as fit its memory and `slowest_s`."""
        stages: list[Stage] = []
        start = 0
        for kind in ordered:
            end = self._furthest(kind, start, slowest_s)
            if end > start:
                stages.append(Stage(kind, self._weighed(LayerRange(start, end))[0]))
                start = end
            if start == self._model.num_layers:
                values = self._model.boundary_values
                cut_values = tuple(values[stage.piece.layers.end - 1] for stage in stages[:-1])
                return Pipeline(self._model, tuple(stages), cut_values, self._link, self._assumptions)
        return None

    def _furthest(self, kind: MachineKind, start: int, slowest_s: float) -> int:
        """The largest end such that `[start, end)` fits; `start` where no layer does."""
        # The last slice holds the head as well, so the step to it is tried by itself.
        if self._fits(kind, LayerRange(start, self._model.num_layers), slowest_s):
            return self._model.num_layers
        low, high = start, self._model.num_layers - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(kind, LayerRange(start, middle), slowest_s):
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, kind: MachineKind, layers: LayerRange, slowest_s: float) -> bool:
        piece, need = self._weighed(layers)
        if need > kind.usable_memory_bytes:
            return False
        return slowest_s == math.inf or self._time_s(kind, piece) <= slowest_s

    def _weighed(self, layers: LayerRange) -> tuple[SliceDemand, float]:
        known = self._needs.get(layers)
        if known is None:
            piece = self._model.slice_demand(layers)
            need = cost_model.slice_memory_bytes(
                piece,
                num_sequences=self._assumptions.streams,
                context_tokens=self._assumptions.context_tokens,
                buffer_bytes=self._buffers,
            )
            known = self._needs[layers] = piece, need
        return known

    def _time_s(self, kind: MachineKind, piece: SliceDemand) -> float:
        key = kind.name, piece.layers
        known = self._times.get(key)
        if known is None:
            known = self._times[key] = cost_model.slice_time(piece, self._step, kind.speed).total_s
        return known

    def _slowest_s(self, pipeline: Pipeline) -> float:
        return max(self._time_s(stage.machine, stage.piece) for stage in pipeline.stages)


def holds_a_layer(model: ModelDemand, kind: MachineKind, assumptions: Assumptions) -> bool:
    """Whether the machine can hold the model's largest layer at all, with its caches and buffers."""
    largest = max(
        layer.weight_bytes + assumptions.streams * layer.kv_bytes(assumptions.context_tokens)
        for layer in set(model.layers)
    )
    return largest + buffer_bytes(model, assumptions) <= kind.usable_memory_bytes


def _fastest_first(machines: Sequence[MachineKind]) -> list[MachineKind]:
    return sorted(machines, key=lambda kind: kind.speed.memory_bytes_per_s, reverse=True)


def _pieces_touched(model: ModelDemand, num_machines: int) -> float:
    """Machines that one token visits: those of the trunk, and one for each expert used."""
    piece_bytes = model.weight_bytes / num_machines
    return sum(
        min(
            math.ceil(layer.weight_bytes / piece_bytes),
            math.ceil(layer.trunk_bytes / piece_bytes) + layer.experts_per_token,
        )
        for layer in model.layers
    )
