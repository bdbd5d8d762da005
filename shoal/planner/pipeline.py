"""A model laid over machines in a row, and what that row does: latency, throughput, prefill, room.

Stages hold whole layers, as Shoal serves them, or, on machines that cannot hold a single layer, even pieces:
equal shares of the weights wherever that cuts, one working after the other. Shoal does not serve
those; thought experiments assume them. Layouts are made in layout.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.machine import LinkKind, MachineKind, Speed
from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.cost_model import StageTime, StepShape
from shoal.planner.model_demand import ModelDemand, SliceDemand

FLOAT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """One machine's part. share: 1 for whole layers; of the whole model for an even piece."""

    machine: MachineKind
    piece: SliceDemand
    share: float = 1.0

    def step_time(self, step: StepShape, *, is_printed: bool) -> StageTime:
        """is_printed: with the makers' figures (a bound), not the derated ones (an expectation)."""
        speed: Speed = self.machine.printed_speed if is_printed else self.machine.speed
        time = cost_model.slice_time(self.piece, step, speed)
        if self.share == 1.0:
            return time
        layers_s = self.piece.layers.num_layers * speed.layer_overhead_s * self.share
        return StageTime(
            time.memory_s * self.share, time.compute_s * self.share, speed.step_overhead_s + layers_s
        )

    def room_bytes(self, buffer_bytes: float) -> float:
        """What is left for caches; below 0 where the weights do not fit."""
        return self.machine.usable_memory_bytes - self.share * self.piece.weight_bytes - buffer_bytes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order over one kind of link.

    cut_values: values of a row at each cut between stages. hops_taken: share of the hops between
    stages that a token makes: 1 for whole layers; below 1 where pieces hold experts that it does not use.
    """

    model: ModelDemand
    stages: tuple[Stage, ...]
    cut_values: tuple[int, ...]
    link: LinkKind
    assumptions: Assumptions
    hops_taken: float = 1.0

    @property
    def num_machines(self) -> int:
        return len(self.stages)

    @property
    def is_whole_layers(self) -> bool:
        return self.stages[0].share == 1.0

    # ------------------------------------------------------------ times

    def decode_stage_s(self, num_sequences: int, *, is_printed: bool = False) -> list[float]:
        step = StepShape.decode(num_sequences, self.assumptions.context_tokens)
        return self._stage_s(step, is_printed=is_printed)

    def hops_s(self, num_tokens: int) -> list[float]:
        """Driver to the first stage, between stages, last stage to driver. One stage alone sits with
        the driver and has none worth counting."""
        if len(self.stages) == 1:
            return [0.0, 0.0]
        driver = cost_model.hop_s(self.link, 0)
        token_bytes = num_tokens * self.assumptions.row_value_bytes
        hop = {
            values: self.hops_taken * cost_model.hop_s(self.link, token_bytes * values)
            for values in set(self.cut_values)
        }
        return [driver, *(hop[values] for values in self.cut_values), driver]

    def token_s(self, *, is_printed: bool = False) -> float:
        """Time a token of one stream: the serial floor where is_printed."""
        return cost_model.round_trip_s(self.decode_stage_s(1, is_printed=is_printed), self.hops_s(1))

    def decode_tok_per_s(self, streams: int) -> float:
        """Of `streams` streams that are there all the time, over all of them.

        They are spread evenly over the number of steps in flight that serves them fastest: more steps keep
        more stages busy, fewer read the weights for more tokens at a time.
        """
        most = min(streams, len(self.stages) + 1)
        fewest = min(most, math.ceil(streams / self.assumptions.max_step_tokens))
        candidates = {fewest, most, max(fewest, most - 1), max(fewest, most // 2), max(fewest, most // 4)}
        return max(self._tok_per_s(streams, steps) for steps in candidates)

    def _tok_per_s(self, streams: int, steps: int) -> float:
        per_step = min(self.assumptions.max_step_tokens, streams / steps)
        fullest = math.ceil(per_step)
        return cost_model.decode_tok_per_s(
            self.decode_stage_s(fullest),
            self.hops_s(fullest),
            steps_in_flight=steps,
            tokens_per_step=per_step,
        )

    def prefill_s(self, num_tokens: int) -> float:
        """To the first token of a prompt on an idle pipeline."""
        chunk = min(num_tokens, self.assumptions.chunk_tokens)
        # The mean chunk, in the middle of the prompt, stands for all.
        step = StepShape.prefill(chunk, max(0, num_tokens // 2 - chunk // 2))
        num_chunks = cost_model.count_chunks(num_tokens, self.assumptions.chunk_tokens)
        return cost_model.prefill_s(self._stage_s(step, is_printed=False), self.hops_s(chunk), num_chunks)

    def _stage_s(self, step: StepShape, *, is_printed: bool) -> list[float]:
        known = {
            id(stage): stage.step_time(step, is_printed=is_printed).total_s for stage in self._distinct()
        }
        return [known[id(stage)] for stage in self.stages]

    def _distinct(self) -> list[Stage]:
        """Even pieces are thousands of times the same stage: it is looked at once."""
        return list({id(stage): stage for stage in self.stages}.values())

    # ------------------------------------------------------------ room and traffic

    @property
    def max_streams(self) -> int:
        """Streams of `context_tokens` whose caches fit beside the weights; 0 where none does. Without
        caches as many as fill every step."""
        context = self.assumptions.context_tokens
        buffers = buffer_bytes(self.model, self.assumptions)
        rooms = [
            (stage.room_bytes(buffers), stage.share * stage.piece.kv_bytes(context))
            for stage in self._distinct()
        ]
        if any(room < 0 for room, _ in rooms):
            return 0
        return min((math.floor(room / need) for room, need in rooms if need), default=self.full_streams)

    @property
    def full_streams(self) -> int:
        """Streams that fill every step in flight: more are not served faster."""
        return self.assumptions.max_step_tokens * (len(self.stages) + 1)

    @property
    def slice_bytes(self) -> float:
        """Weights of the largest stage: what a fresh machine fetches."""
        return max(stage.share * stage.piece.weight_bytes for stage in self._distinct())

    @property
    def memory_margin(self) -> float:
        """Usable memory over what is needed with caches for `streams` and buffers, of the tightest stage."""
        context, streams = self.assumptions.context_tokens, self.assumptions.streams
        buffers = buffer_bytes(self.model, self.assumptions)
        return min(
            stage.machine.usable_memory_bytes
            / (stage.share * (stage.piece.weight_bytes + streams * stage.piece.kv_bytes(context)) + buffers)
            for stage in self._distinct()
        )

    def chunk_stage_s(self) -> list[float]:
        """Of one full prefill chunk at the start of a prompt, on each stage."""
        return self._stage_s(StepShape.prefill(self.assumptions.chunk_tokens, 0), is_printed=False)

    @property
    def read_bytes_per_token(self) -> float:
        """Weights and caches read from memory for one token of one stream, over all stages."""
        step = StepShape.decode(1, self.assumptions.context_tokens)
        if not self.is_whole_layers:
            work = cost_model.stage_work(self.model.whole, step)
            return work.weight_bytes + work.cache_bytes
        works = [cost_model.stage_work(stage.piece, step) for stage in self.stages]
        return sum(work.weight_bytes + work.cache_bytes for work in works)

    @property
    def bound(self) -> str:
        """What the slowest stage waits for in a step of one token."""
        step = StepShape.decode(1, self.assumptions.context_tokens)
        times = [stage.step_time(step, is_printed=False) for stage in self._distinct()]
        return max(times, key=lambda time: time.total_s).bound

    @property
    def wire_bytes_per_token(self) -> float:
        """Rows between stages, all hops together."""
        return self.hops_taken * sum(self.cut_values) * self.assumptions.row_value_bytes


def buffer_bytes(model: ModelDemand, assumptions: Assumptions) -> float:
    """Work buffers of one stage: rows of a chunk in float32."""
    return assumptions.buffer_rows * model.row_values * FLOAT32_BYTES
