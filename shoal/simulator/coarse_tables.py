"""How fast a whole cell is in each of its states, worked out once: the coarse mode only looks it up.

A state is (prompts being prefilled, answers being decoded, stages that the busiest machine carries). The
pipeline is taken as a closed network of steps, as production's scheduler makes them: at most one decode
step and one prefill chunk in flight for each stage. One round, in which every step passes every stage
once, takes the longer of a step's own round trip and the work that the slowest machine has in it
(the asymptotic bounds of Denning and Buzen 1978). Stages are first come first served, so that a decode
step that catches up with a chunk stays behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.catalogue.machine import MachineKind
from shoal.core.config import DriverConfig
from shoal.pipeline.scheduler import Scheduler
from shoal.planner import cost_model
from shoal.planner.cost_model import StepShape
from shoal.planner.pipeline import Pipeline
from shoal.simulator.cell_plan import CellPlan, make_layouts, plan_cell
from shoal.simulator.scenario import Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_DOUBLING: Final = 4  # stages on one machine, beyond which a cell counts as lost


@dataclass(frozen=True, slots=True)
class CellTables:
    """One kind of cell. Arrays are indexed [stages on the busiest machine - 1, prompts, answers].

    token_s: from token to token of an answer. prefill_per_s: prompts that get their first token.
    first_s: for a prompt that comes into this state. stage_busy: mean over stages; link_share: of
    the time that steps spend on links and computing. slots: slices that a machine can hold. load_s: of the
    largest slice. replay_s: for a stage to compute one stream's context again. hot_s: a step along
    the new route.
    """

    num_stages: int
    num_machines: int
    slots: int
    load_s: float
    replay_s: float
    hot_s: float
    token_s: Floats
    prefill_per_s: Floats
    first_s: Floats
    stage_busy: Floats
    link_s_per_s: Floats
    link_bytes_per_token: float


def make_tables(plan: CellPlan) -> CellTables:
    """All states of a cell with up to `streams` requests."""
    serving, workload = plan.scenario.serving, plan.scenario.workload
    prompt, output = max(1, round(workload.mean_prompt_tokens)), workload.mean_output_tokens
    context = max(1, round(prompt + output / 2))
    pipeline = plan.pipeline
    rates = _Rates(pipeline, serving.streams, serving.chunk_tokens, prompt, context)
    slice_bytes = plan.slice_bytes
    least_room = min(kind.usable_memory_bytes for kind in plan.machines.values())
    chunks = cost_model.count_chunks(context, serving.chunk_tokens)
    return CellTables(
        num_stages=len(plan.ranges),
        num_machines=len(plan.machines),
        slots=min(MAX_DOUBLING, max(1, least_room // max(slice_bytes.values()))),
        load_s=max(plan.load_s(layers) for layers in plan.ranges),
        replay_s=chunks * float(rates.chunk_stage_s.max()),
        hot_s=rates.decode_trip_s(1),
        link_bytes_per_token=pipeline.wire_bytes_per_token,
        **rates.tables(),
    )


class _Rates:
    """Times of steps on one pipeline, and from them the tables."""

    def __init__(
        self, pipeline: Pipeline, streams: int, chunk_tokens: int, prompt: int, context: int
    ) -> None:
        self._pipeline = pipeline
        self._streams = streams
        self._context = context
        self._stages = len(pipeline.stages)
        scheduler = Scheduler(
            num_stages=self._stages,
            chunk_tokens=chunk_tokens,
            least_chunk_tokens=DriverConfig().least_chunk_tokens,
            max_batch_tokens=chunk_tokens,
        )
        self._num_chunks = cost_model.count_chunks(prompt, scheduler.chunk_length(prompt))
        # The mean chunk stands for all; the last one is shorter.
        self._chunk = -(-prompt // self._num_chunks)
        step = StepShape.prefill(self._chunk, max(0, prompt // 2 - self._chunk // 2))
        self.chunk_stage_s = self._stage_s(step)
        self._chunk_trip_s = float(self.chunk_stage_s.sum()) + sum(pipeline.hops_s(self._chunk))
        self._decode: dict[int, Floats] = {}

    def _stage_s(self, step: StepShape) -> Floats:
        times = [stage.step_time(step, is_printed=False).total_s for stage in self._pipeline.stages]
        return np.array(times)

    def _decode_stage_s(self, sequences: int) -> Floats:
        if sequences not in self._decode:
            self._decode[sequences] = self._stage_s(StepShape.decode(sequences, self._context))
        return self._decode[sequences]

    def decode_trip_s(self, sequences: int) -> float:
        """One decode step alone."""
        return float(self._decode_stage_s(sequences).sum()) + sum(self._pipeline.hops_s(sequences))

    def tables(self) -> dict[str, Floats]:
        shape = (MAX_DOUBLING, self._streams + 1, self._streams + 1)
        names = ("token_s", "prefill_per_s", "first_s", "stage_busy", "link_s_per_s")
        found = {name: np.zeros(shape) for name in names}
        for doubling in range(MAX_DOUBLING):
            for prompts in range(self._streams + 1):
                for answers in range(self._streams + 1 - prompts):
                    state = self._state(doubling + 1, prompts, answers)
                    for name, value in zip(names, state, strict=True):
                        found[name][doubling, prompts, answers] = value
        return found

    def _state(self, doubling: int, prompts: int, answers: int) -> tuple[float, float, float, float, float]:
        share = max(1, -(-answers // self._stages))
        decode_steps = -(-answers // share)
        decode_s, chunk_s = self._decode_stage_s(share), self.chunk_stage_s
        most = self._stages if answers else self._stages + 1
        chunks = min(most, prompts * self._num_chunks)
        work_s = float((decode_steps * decode_s + chunks * chunk_s).max()) * doubling
        trips = [self.decode_trip_s(share)] * bool(answers) + [self._chunk_trip_s] * bool(prompts)
        token_s = max([*trips, work_s], default=0.0)
        first_s = 0.0
        if prompts:
            alone_s = self._chunk_trip_s + (self._num_chunks - 1) * float(chunk_s.max()) * doubling
            first_s = max(alone_s, prompts * self._num_chunks * work_s / chunks)
        decodes_per_s = decode_steps / token_s if answers else 0.0
        chunks_per_s = prompts * self._num_chunks / first_s if prompts else 0.0
        busy = decodes_per_s * float(decode_s.mean()) + chunks_per_s * float(chunk_s.mean())
        hops = decodes_per_s * sum(self._pipeline.hops_s(share))
        hops += chunks_per_s * sum(self._pipeline.hops_s(self._chunk))
        return token_s, prompts / first_s if prompts else 0.0, first_s, min(1.0, busy), hops


def kinds_of_cells(
    scenario: Scenario, dealt: Sequence[Sequence[MachineKind]]
) -> tuple[list[CellTables], Ints]:
    """Tables of each different composition, and which cell has which."""
    layouts = make_layouts(scenario)
    known: dict[tuple[str, ...], int] = {}
    tables: list[CellTables] = []
    kinds = np.zeros(len(dealt), np.int64)
    for number, machines in enumerate(dealt):
        key = tuple(sorted(kind.name for kind in machines))
        if key not in known:
            known[key] = len(tables)
            plan = plan_cell(scenario, machines, number, layouts)
            tables.append(make_tables(plan))
        kinds[number] = known[key]
    return tables, kinds
