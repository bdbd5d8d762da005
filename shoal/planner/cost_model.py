"""Predicted times, bytes, energy and cost of a model cut into stages. Pure arithmetic.

Units: seconds, bytes, operations (one multiplication or one addition each), watts, US dollars.
Every function says its formula. Used by estimates, the simulator and the planner; reads no file,
no clock and no catalogue. What it leaves out is said where it is left out.

Roofline: a stage reads bytes and does operations at the same time, so the longer of the two
counts (S. Williams et al., "Roofline", CACM 2009). Pipeline bounds: the asymptotic bounds of a
closed queueing network (D. Denning and J. Buzen, Computing Surveys 1978), which a deterministic
pipeline reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shoal.catalogue.machine import LinkKind, Speed
from shoal.core.units import HOUR_S, JOULES_PER_KWH, MEGA
from shoal.planner.model_demand import LayerDemand, ModelDemand, SliceDemand

OPS_PER_PARAMETER: Final = 2  # a multiplication and an addition
STATE_PASSES: Final = 2  # recurrent state is read and written back


# ---------------------------------------------------------------- one stage


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step: num_tokens rows of num_sequences sequences, each of which holds context_tokens (mean)
    before it; num_sampled rows need logits. Decode: tokens = sequences = sampled. A prefill chunk:
    one sequence, and sampled 0, or 1 where it ends the prompt."""

    num_tokens: int
    num_sequences: int
    context_tokens: int
    num_sampled: int

    @staticmethod
    def decode(num_sequences: int, context_tokens: int) -> StepShape:
        """One token each of `num_sequences`."""
        return StepShape(num_sequences, num_sequences, context_tokens, num_sequences)

    @staticmethod
    def prefill(num_tokens: int, start: int, *, ends_prompt: bool = False) -> StepShape:
        """A chunk of one prompt whose first token has the position `start`."""
        # Tokens of a chunk attend to half of it on average.
        return StepShape(num_tokens, 1, start + num_tokens // 2, 1 if ends_prompt else 0)


@dataclass(frozen=True, slots=True)
class StageWork:
    """What one stage does in one step. weight_bytes and cache_bytes are read from memory."""

    weight_bytes: float
    cache_bytes: float
    ops: float
    num_rows: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class StageTime:
    """Of one step on one stage."""

    memory_s: float
    compute_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        """max(memory, compute) + overhead."""
        return max(self.memory_s, self.compute_s) + self.overhead_s

    @property
    def bound(self) -> Literal["memory", "compute"]:
        return "memory" if self.memory_s >= self.compute_s else "compute"


def distinct_experts(num_experts: int, per_token: int, num_tokens: int) -> float:
    """Experts of one layer that a step of num_tokens touches, in expectation.

    E * (1 - (1 - k/E) ** n), for tokens that choose independently and evenly. Real routers repeat
    themselves, so this reads more than they do.
    """
    if num_experts == 0:
        return 0.0
    return num_experts * (1 - (1 - per_token / num_experts) ** num_tokens)


def stage_work(piece: SliceDemand, step: StepShape) -> StageWork:
    """Bytes and operations of `step` on the layers of `piece`.

    weights = sum over layers of trunk + distinct experts * expert bytes, + head if it samples
    cache   = sequences * sum of (tokens attended * KV bytes a token + context * index bytes a token
              + fixed bytes + 2 * state bytes)
    ops     = tokens * sum of (2 * active parameters + tokens attended * attention ops)
              + sampled * 2 * head parameters
    The embedding is a look-up of one row a token and is left out, as are activations.
    """
    weights = cache = ops_per_token = 0.0
    for layer, count in piece.kinds:
        attended = layer.tokens_read(step.context_tokens)
        weights += count * _weights_read(layer, step.num_tokens)
        cache += count * _cache_read(layer, attended, step.context_tokens)
        ops_per_token += count * (
            OPS_PER_PARAMETER * layer.active_parameters + attended * layer.attention_ops_per_cached_token
        )
    if step.num_sampled:
        weights += piece.head_bytes
    return StageWork(
        weight_bytes=weights,
        cache_bytes=step.num_sequences * cache,
        ops=step.num_tokens * ops_per_token + step.num_sampled * OPS_PER_PARAMETER * piece.head_parameters,
        num_rows=step.num_tokens,
        num_layers=piece.layers.num_layers,
    )


def _weights_read(layer: LayerDemand, num_tokens: int) -> float:
    experts = distinct_experts(layer.num_experts, layer.experts_per_token, num_tokens)
    return layer.trunk_bytes + experts * layer.expert_bytes


def _cache_read(layer: LayerDemand, attended: int, context_tokens: int) -> float:
    grown = attended * layer.kv_bytes_per_token + context_tokens * layer.index_bytes_per_token
    return grown + layer.fixed_bytes + STATE_PASSES * layer.state_bytes


def stage_time(work: StageWork, speed: Speed) -> StageTime:
    """Roofline: bytes / memory rate against operations / compute rate, and the fixed overheads.

    The compute rate is the matrix rate from `matrix_min_rows` rows on, the vector rate below.
    """
    is_matrix = work.num_rows >= speed.matrix_min_rows
    ops_per_s = speed.matrix_ops_per_s if is_matrix else speed.vector_ops_per_s
    return StageTime(
        memory_s=(work.weight_bytes + work.cache_bytes) / speed.memory_bytes_per_s,
        compute_s=work.ops / ops_per_s,
        overhead_s=speed.step_overhead_s + work.num_layers * speed.layer_overhead_s,
    )


def slice_time(piece: SliceDemand, step: StepShape, speed: Speed) -> StageTime:
    """`stage_time` of `stage_work`."""
    return stage_time(stage_work(piece, step), speed)


# ---------------------------------------------------------------- links


def hop_s(link: LinkKind, payload_bytes: float) -> float:
    """One message from one stage to the next: latency + software + bytes / rate."""
    return link.latency_s + link.software_s + payload_bytes / link.bytes_per_s


def cut_hop_s(
    model: ModelDemand, cut: int, link: LinkKind, *, num_tokens: int, bytes_per_value: int
) -> float:
    """The rows of `num_tokens` tokens across the cut before layer `cut`."""
    return hop_s(link, num_tokens * model.payload_bytes(cut, bytes_per_value=bytes_per_value))


# ---------------------------------------------------------------- pipelines


def round_trip_s(stage_s: Sequence[float], hops_s: Sequence[float]) -> float:
    """One step through all stages and back to the driver: the sum of stages and hops.

    hops_s: driver to stage 0, stage to stage, last stage to driver: one more than stages. For a
    step of one token this is the serial floor of a stream: no number of machines goes below it.
    """
    _check_hops(stage_s, hops_s)
    return sum(stage_s) + sum(hops_s)


def decode_tok_per_s(
    stage_s: Sequence[float], hops_s: Sequence[float], *, steps_in_flight: int, tokens_per_step: float
) -> float:
    """Tokens a second over all streams of one pipeline.

    tokens_per_step * min(steps in flight / round trip, 1 / slowest stage or hop). A stage computes
    one step at a time; a link carries one message at a time. tokens_per_step: mean over the steps.
    Exact for constant times; random times lower it.
    """
    round_trip = round_trip_s(stage_s, hops_s)
    bottleneck = max(*stage_s, *hops_s)
    return tokens_per_step * min(steps_in_flight / round_trip, 1 / bottleneck)


def prefill_s(chunk_stage_s: Sequence[float], chunk_hops_s: Sequence[float], num_chunks: int) -> float:
    """From the prompt's first chunk entering stage 0 to its first token at the driver.

    Fill the pipeline once, then one chunk leaves every bottleneck interval:
    round trip of a chunk + (chunks - 1) * slowest stage or hop. Chunks are taken as equal.
    """
    bottleneck = max(*chunk_stage_s, *chunk_hops_s)
    return round_trip_s(chunk_stage_s, chunk_hops_s) + max(0, num_chunks - 1) * bottleneck


def count_chunks(num_tokens: int, chunk_tokens: int) -> int:
    """Chunks of at most chunk_tokens that num_tokens make."""
    return -(-num_tokens // chunk_tokens)


def _check_hops(stage_s: Sequence[float], hops_s: Sequence[float]) -> None:
    if len(hops_s) != len(stage_s) + 1:
        raise ValueError(f"{len(stage_s)} stages have {len(stage_s) + 1} hops, not {len(hops_s)}")


# ---------------------------------------------------------------- memory


def nodes_for_bytes(num_bytes: float, bytes_per_node: float) -> int:
    """ceil(bytes / bytes of a node), for contents that may be divided anywhere.

    Rounding before the division is the error behind the "52" and "128" nodes often printed.
    """
    return math.ceil(num_bytes / bytes_per_node)


def slice_memory_bytes(
    piece: SliceDemand, *, num_sequences: int, context_tokens: int, buffer_bytes: float = 0.0
) -> float:
    """Weights + caches of num_sequences of context_tokens each + work buffers."""
    return piece.weight_bytes + num_sequences * piece.kv_bytes(context_tokens) + buffer_bytes


# ---------------------------------------------------------------- energy and money


def joules_per_token(power_w: float, tok_per_s: float) -> float:
    """power / rate; power of all machines that are kept on for it, busy or not."""
    return power_w / tok_per_s


def kwh_per_million_tokens(power_w: float, tok_per_s: float) -> float:
    """10^6 * power / rate / 3.6e6."""
    return MEGA * joules_per_token(power_w, tok_per_s) / JOULES_PER_KWH


def usd_per_million_tokens(usd_per_hour: float, tok_per_s: float) -> float:
    """10^6 * dollars an hour / tokens an hour."""
    return MEGA * usd_per_hour / (tok_per_s * HOUR_S)


def electricity_usd_per_hour(power_w: float, usd_per_kwh: float) -> float:
    """kW * price of a kWh."""
    return power_w * HOUR_S / JOULES_PER_KWH * usd_per_kwh


def capital_usd_per_hour(price_usd: float, *, lifetime_s: float, used_share: float) -> float:
    """The price spread evenly over the hours of use; no interest, no resale."""
    return price_usd / (lifetime_s / HOUR_S * used_share)
