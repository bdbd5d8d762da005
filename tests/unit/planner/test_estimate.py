"""Estimates of toy clusters by hand, and of real ones for the figures people quote."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.planner import cost_model
from shoal.planner.assumptions import default_assumptions
from shoal.planner.cluster import parse_cluster
from shoal.planner.deployment import Deployment, DoesNotFit, candidate_deployments, fastest_for
from shoal.planner.estimate import Estimate, estimate_cluster, estimate_model
from shoal.planner.layout import Layouts
from shoal.planner.model_source import find_model
from shoal.planner.reference_server import reference_server
from tests.unit.planner.toys import ASSUMED, CACHED_LAYER, LAYER, WIRE, cluster, machine, model

TEN = model(*[LAYER] * 10)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def estimated(catalogue: Catalogue, machines: str, model_name: str, quantisation: str | None) -> Estimate:
    members = parse_cluster([machines], catalogue)
    demand = find_model(model_name, quantisation, catalogue)
    return estimate_model(members, demand, catalogue.link("gigabit"), default_assumptions(catalogue))


def test_one_stream_uses_the_machine_that_holds_the_model_and_no_other() -> None:
    found = estimate_model(cluster((machine(), 3)), TEN, WIRE, ASSUMED)
    assert found.one_stream is not None
    assert found.one_stream.machines == 1
    assert found.one_stream.floor_s == found.one_stream.expected_s == 10.0
    assert any("1 of 3 machines" in remark for remark in found.remarks)


def test_copies_of_a_pipeline_multiply_throughput() -> None:
    candidates = candidate_deployments(TEN, cluster((machine(memory=1100), 6)), WIRE, ASSUMED)
    best = fastest_for(candidates, None)
    assert best.num_machines == 6
    assert best.tok_per_s(best.saturating_streams) >= 6 * 4 / 10.0


def test_a_stream_is_served_by_one_pipeline_only() -> None:
    layouts = Layouts(TEN, WIRE, ASSUMED)
    fast, slow = layouts.balance([machine("fast", bandwidth=400.0)]), layouts.balance([machine("slow")])
    assert fast is not None
    assert slow is not None
    both = Deployment(((fast, 1), (slow, 1)))
    assert both.tok_per_s(1) == fast.decode_tok_per_s(1)


def test_streams_wait_where_room_for_all_would_move_layers_to_a_slow_machine(catalogue: Catalogue) -> None:
    boxes = parse_cluster(["rtx-3090, rtx-3060, rtx-4060, desktop-ddr5, rtx-4070"], catalogue)
    demand, link = find_model("llama-70b", "q4_k_m", catalogue), catalogue.link("gigabit")
    rates = []
    for streams in (8, 16, 32, 64):
        given = replace(default_assumptions(catalogue), streams=streams, context_tokens=2048)
        found = estimate_model(boxes, demand, link, given).throughput
        assert found is not None
        assert (found.streams_at_once < streams) == (streams == 64)
        rates.append(found.streams_tok_per_s)
    assert all(more > 0.95 * fewer for fewer, more in pairwise(rates))
    assert rates[-1] > 100
    everything = Layouts(demand, link, given).balance([kind for kind, _ in boxes.members])
    assert everything is not None
    assert everything.decode_tok_per_s(64) < 20


def test_upkeep_is_power_and_price_over_tokens() -> None:
    found = estimate_model(cluster((machine(), 1)), TEN, WIRE, ASSUMED)
    assert found.throughput is not None
    assert found.upkeep is not None
    rate = found.throughput.full_tok_per_s
    assert found.upkeep.joules_per_token == pytest.approx(100.0 / rate)
    assert found.upkeep.electricity_usd_per_million == pytest.approx(1e6 * 0.1 * 0.1 / rate / 3600)
    assert found.upkeep.hardware_usd_per_million == pytest.approx(1e6 * 0.36 / rate / 3600)
    assert found.upkeep.rent_usd_per_million is None


def test_idle_hours_cost_as_much_and_yield_nothing(catalogue: Catalogue) -> None:
    full = estimate_model(cluster((machine(), 1)), TEN, WIRE, ASSUMED).upkeep
    half = estimate_model(cluster((machine(), 1)), TEN, WIRE, replace(ASSUMED, used_share=0.5)).upkeep
    assert full is not None
    assert half is not None
    assert half.electricity_usd_per_million == pytest.approx(2 * full.electricity_usd_per_million)
    demand, h100 = find_model("qwen3-8b", "q4_0", catalogue), catalogue.machine("h100")
    given = default_assumptions(catalogue)
    busy = reference_server(demand, h100, catalogue, given)
    idle = reference_server(demand, h100, catalogue, replace(given, used_share=0.5))
    assert idle.usd_per_million == pytest.approx(2 * busy.usd_per_million)


def test_streams_that_do_not_divide_evenly_are_spread_with_a_rest() -> None:
    layouts = Layouts(model(*[CACHED_LAYER] * 10), WIRE, ASSUMED)
    pipeline = layouts.fill_fastest([machine()])
    assert pipeline is not None
    three = Deployment(((pipeline, 2),)).tok_per_s(3)
    assert three == pytest.approx(pipeline.decode_tok_per_s(1) + pipeline.decode_tok_per_s(2))


def test_a_cluster_that_cannot_hold_the_model_is_told_what_is_missing() -> None:
    with pytest.raises(DoesNotFit) as caught:
        estimate_model(cluster((machine(memory=300), 2)), TEN, WIRE, ASSUMED)
    assert "does not fit 2 x box" in str(caught.value)
    assert "x box would hold it" in str(caught.value)


def test_k3_on_consoles_is_a_thought_experiment_in_pieces(catalogue: Catalogue) -> None:
    found = estimated(catalogue, "100000xPS3", "kimi-k3", None)
    assert found.model is not None
    assert found.one_stream is not None
    assert round(found.model.active_parameters / 1e9, 2) == 104.19
    assert found.needs[0].weights_nodes == pytest.approx(5816, rel=0.001)
    assert not found.needs[0].holds_a_layer
    assert not found.one_stream.is_whole_layers
    assert found.one_stream.floor_memory_s == pytest.approx(5.35, abs=0.1)
    assert any("thought experiment" in remark for remark in found.remarks)


def test_row_bytes_follow_the_wires_precision(catalogue: Catalogue) -> None:
    cluster_of_macs = parse_cluster(["4xm3-ultra-512"], catalogue)
    demand = find_model("kimi-k3", None, catalogue)
    link, given = catalogue.link("gigabit"), default_assumptions(catalogue)
    for value_bytes, low, high in ((2, 28_672, 129_024), (4, 57_344, 258_048)):
        facts = estimate_model(
            cluster_of_macs, demand, link, replace(given, row_value_bytes=value_bytes)
        ).model
        assert facts is not None
        assert (facts.min_payload_bytes, facts.max_payload_bytes) == (low, high)


def test_more_streams_never_lower_the_rate(catalogue: Catalogue) -> None:
    members = parse_cluster(["2xrtx-5090,4xn100"], catalogue)
    demand = find_model("qwen3-30b-a3b", "q4_0", catalogue)
    given = default_assumptions(catalogue)
    candidates = candidate_deployments(demand, members, catalogue.link("gigabit"), given)
    rates = [fastest_for(candidates, streams).tok_per_s(streams) for streams in (1, 2, 4, 8, 16, 32, 64)]
    assert rates == sorted(rates)


def test_without_a_model_the_classic_pair_is_shown(catalogue: Catalogue) -> None:
    found = estimate_cluster(
        parse_cluster(["2xn100,100xPS3"], catalogue), catalogue.link("gigabit"), catalogue
    )
    assert [count.nodes for count in found.classic] == [53, 131]
    assert found.model is None


def test_unverified_inputs_are_named(catalogue: Catalogue) -> None:
    found = estimated(catalogue, "4xn100", "qwen3-8b", "q4_0")
    assert any("N100" in line and "usable compute" in line for line in found.unverified)


def test_the_reference_server_has_just_enough_gpus(catalogue: Catalogue) -> None:
    given = default_assumptions(catalogue)
    h100 = catalogue.machine("h100")
    small = reference_server(find_model("qwen3-30b-a3b", "q4_0", catalogue), h100, catalogue, given)
    large = reference_server(find_model("kimi-k3", None, catalogue), h100, catalogue, given)
    assert small.gpus == 1
    assert 21 <= large.gpus <= 25
    assert small.usd_per_million == pytest.approx(
        cost_model.usd_per_million_tokens(small.usd_per_hour, small.tok_per_s)
    )
