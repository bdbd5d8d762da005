"""The cost model's formulas, each against a value worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.catalogue.machine import LinkKind, Speed
from shoal.core.specs import LayerRange
from shoal.planner import cost_model
from shoal.planner.cost_model import StageWork, StepShape, stage_time, stage_work
from shoal.planner.model_demand import LayerDemand, ModelDemand

DENSE = LayerDemand(
    trunk_bytes=1000, trunk_parameters=500, kv_bytes_per_token=16.0, attention_ops_per_cached_token=8.0
)
WINDOWED = LayerDemand(trunk_bytes=1000, trunk_parameters=500, kv_bytes_per_token=16.0, kv_window_tokens=100)
RECURRENT = LayerDemand(trunk_bytes=1000, trunk_parameters=500, state_bytes=300)
EXPERTS = LayerDemand(
    trunk_bytes=100,
    trunk_parameters=50,
    expert_bytes=20,
    expert_parameters=10,
    num_experts=8,
    experts_per_token=2,
)
LINK = LinkKind("wire", "a wire", latency_s=0.5, software_s=0.25, bytes_per_s=100.0)


def model_of(*layers: LayerDemand, tied: bool = False) -> ModelDemand:
    return ModelDemand(
        name="toy",
        quantisation="toy",
        layers=layers,
        row_values=10,
        boundary_values=tuple(10 * (cut + 1) for cut in range(len(layers) - 1)),
        embedding_bytes=70,
        embedding_parameters=35,
        head_bytes=70,
        head_parameters=35,
        tied_bytes=70 if tied else 0,
        tied_parameters=35 if tied else 0,
        trained_context_tokens=4096,
    )


def test_a_stage_takes_the_longer_of_reading_and_computing_and_its_overhead() -> None:
    speed = Speed(
        100.0,
        matrix_ops_per_s=1000.0,
        vector_ops_per_s=500.0,
        matrix_min_rows=4,
        step_overhead_s=0.5,
        layer_overhead_s=0.25,
    )
    reading = stage_time(StageWork(300.0, 100.0, ops=1000.0, num_rows=1, num_layers=2), speed)
    assert (reading.memory_s, reading.compute_s, reading.total_s) == (4.0, 2.0, 5.0)
    assert reading.bound == "memory"
    computing = stage_time(StageWork(300.0, 100.0, ops=5000.0, num_rows=4, num_layers=2), speed)
    assert (computing.compute_s, computing.total_s, computing.bound) == (5.0, 6.0, "compute")


def test_one_token_reads_all_trunk_weights_its_experts_and_the_caches() -> None:
    piece = model_of(DENSE, RECURRENT, EXPERTS).whole
    work = stage_work(piece, StepShape.decode(1, context_tokens=50))
    assert work.weight_bytes == pytest.approx(1000 + 1000 + 100 + 2 * 20 + 70)
    assert work.cache_bytes == 50 * 16 + 2 * 300
    assert work.ops == 2 * (500 + 500 + 50 + 2 * 10) + 50 * 8 + 2 * 35


def test_a_step_that_samples_nothing_does_not_read_the_head() -> None:
    piece = model_of(DENSE).whole
    with_head = stage_work(piece, StepShape.prefill(10, 0, ends_prompt=True))
    without = stage_work(piece, StepShape.prefill(10, 0))
    assert with_head.weight_bytes - without.weight_bytes == 70
    assert with_head.ops - without.ops == 2 * 35


def test_a_window_bounds_what_is_held_and_what_is_read() -> None:
    assert WINDOWED.kv_bytes(1000) == 100 * 16
    piece = model_of(WINDOWED).whole
    assert stage_work(piece, StepShape.decode(1, 1000)).cache_bytes == 100 * 16


@given(st.integers(1, 512), st.integers(1, 64), st.integers(0, 2000))
def test_a_step_never_touches_more_experts_than_there_are_or_than_it_asks_for(
    num_experts: int, per_token: int, num_tokens: int
) -> None:
    per_token = min(per_token, num_experts)
    touched = cost_model.distinct_experts(num_experts, per_token, num_tokens)
    assert -1e-9 <= touched <= min(num_experts, per_token * num_tokens) + 1e-9


def test_tokens_that_choose_alike_share_experts() -> None:
    """Of 8 experts two tokens leave 8 * (3/4)**2 = 4.5 untouched."""
    assert cost_model.distinct_experts(8, 2, 2) == pytest.approx(3.5)


def test_one_token_touches_exactly_its_experts() -> None:
    assert cost_model.distinct_experts(896, 16, 1) == pytest.approx(16)


def test_slices_add_up_to_the_model() -> None:
    model = model_of(DENSE, EXPERTS, WINDOWED, RECURRENT)
    pieces = [model.slice_demand(LayerRange(0, 1)), model.slice_demand(LayerRange(1, 4))]
    assert sum(piece.weight_bytes for piece in pieces) == model.weight_bytes == model.whole.weight_bytes
    assert sum(piece.kv_bytes(200) for piece in pieces) == model.kv_bytes(200)


def test_a_tied_table_is_held_once_by_one_machine_and_twice_by_two() -> None:
    model = model_of(DENSE, DENSE, tied=True)
    assert model.weight_bytes == model.whole.weight_bytes == 2000 + 70
    ends = [model.slice_demand(LayerRange(0, 1)), model.slice_demand(LayerRange(1, 2))]
    assert sum(piece.weight_bytes for piece in ends) == 2000 + 2 * 70


def test_a_hop_is_latency_software_and_bytes_over_the_rate() -> None:
    assert cost_model.hop_s(LINK, 50.0) == 0.5 + 0.25 + 0.5
    model = model_of(DENSE, DENSE, DENSE)
    assert cost_model.cut_hop_s(model, 2, LINK, num_tokens=3, bytes_per_value=2) == 0.75 + 3 * 20 * 2 / 100


def test_one_stream_takes_the_serial_floor_and_more_steps_fill_the_slowest_stage() -> None:
    stages, hops = [2.0, 3.0], [0.5, 0.5, 0.5]
    assert cost_model.round_trip_s(stages, hops) == 6.5
    rates = [
        cost_model.decode_tok_per_s(stages, hops, steps_in_flight=steps, tokens_per_step=4)
        for steps in (1, 2, 3)
    ]
    assert rates == pytest.approx([4 / 6.5, 8 / 6.5, 4 / 3.0])


def test_a_slow_link_is_a_bottleneck_like_a_stage() -> None:
    rate = cost_model.decode_tok_per_s([1.0, 1.0], [0.0, 5.0, 0.0], steps_in_flight=100, tokens_per_step=1)
    assert rate == pytest.approx(1 / 5)


def test_prefill_fills_the_pipeline_once_and_then_follows_the_slowest() -> None:
    assert cost_model.count_chunks(1000, 128) == 8
    assert cost_model.prefill_s([2.0, 3.0], [0.5, 0.5, 0.5], 8) == 6.5 + 7 * 3.0
    assert cost_model.prefill_s([2.0], [0.5, 0.5], 1) == 3.0


def test_a_missing_hop_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="2 stages have 3 hops"):
        cost_model.round_trip_s([1.0, 1.0], [0.5, 0.5])


def test_nodes_are_rounded_up_once_at_the_end() -> None:
    assert cost_model.nodes_for_bytes(14e9, 2**28) == 53
    assert cost_model.nodes_for_bytes(35e9, 2**28) == 131
    assert cost_model.nodes_for_bytes(2**28, 2**28) == 1


def test_energy_and_money_of_a_token() -> None:
    assert cost_model.joules_per_token(500.0, 25.0) == 20.0
    assert cost_model.kwh_per_million_tokens(3600.0, 1000.0) == pytest.approx(1.0)
    assert cost_model.usd_per_million_tokens(3.6, 1000.0) == pytest.approx(1.0)
    assert cost_model.electricity_usd_per_hour(2000.0, 0.12) == pytest.approx(0.24)
    assert cost_model.capital_usd_per_hour(876.6, lifetime_s=365.25 * 86400, used_share=0.5) == pytest.approx(
        0.2
    )
