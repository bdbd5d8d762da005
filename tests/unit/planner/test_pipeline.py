"""Layouts over toy machines, with times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.catalogue.loader import load_catalogue
from shoal.planner.assumptions import default_assumptions
from shoal.planner.layout import Layouts
from shoal.planner.model_source import find_model
from shoal.planner.pipeline import Pipeline, buffer_bytes
from tests.unit.planner.toys import ASSUMED, CACHED_LAYER, EXPERT_LAYER, LAYER, WIRE, machine, model

TEN = model(*[LAYER] * 10)


def sizes(pipeline: Pipeline | None) -> list[tuple[str, int]]:
    assert pipeline is not None
    return [(stage.machine.name, stage.piece.layers.num_layers) for stage in pipeline.stages]


def test_one_machine_that_holds_the_model_is_used_alone() -> None:
    found = Layouts(TEN, WIRE, ASSUMED).fill_fastest([machine()] * 3)
    assert sizes(found) == [("box", 10)]
    assert found is not None
    assert found.token_s() == 1000 / 100  # no hops: the driver sits beside it


def test_the_fastest_machines_are_filled_first() -> None:
    fast = machine("fast", memory=470, bandwidth=400.0)
    found = Layouts(TEN, WIRE, ASSUMED).fill_fastest([machine("slow"), fast])
    assert sizes(found) == [("fast", 4), ("slow", 6)]
    assert found is not None
    hops = 1.0 + (1.0 + 2 / 1000) + 1.0
    assert found.token_s() == pytest.approx(400 / 400 + 600 / 100 + hops)


def test_balancing_gives_each_machine_layers_in_proportion_to_its_speed() -> None:
    fast = machine("fast", memory=2000, bandwidth=400.0)
    found = Layouts(TEN, WIRE, ASSUMED).balance([machine("slow"), fast])
    assert sizes(found) == [("fast", 8), ("slow", 2)]


def test_balancing_never_exceeds_a_machines_memory() -> None:
    fast = machine("fast", memory=370, bandwidth=4000.0)
    found = Layouts(TEN, WIRE, ASSUMED).balance([fast, machine("slow", memory=770)])
    assert sizes(found) == [("fast", 3), ("slow", 7)]


def test_machines_that_are_too_small_are_not_found_a_layout() -> None:
    assert Layouts(TEN, WIRE, ASSUMED).fill_fastest([machine(memory=400)] * 2) is None
    assert Layouts(TEN, WIRE, ASSUMED).balance([machine(memory=90)] * 100) is None


def test_caches_of_all_streams_count_towards_memory() -> None:
    cached = model(*[CACHED_LAYER] * 10)
    buffers = buffer_bytes(cached, ASSUMED)
    assert buffers == 4 * 4 * 1 * 4
    alone = machine(memory=int(1000 + 3 * 10 * 10 + buffers))
    three, four = replace(ASSUMED, streams=3), replace(ASSUMED, streams=4)
    assert sizes(Layouts(cached, WIRE, three).fill_fastest([alone])) == [("box", 10)]
    assert Layouts(cached, WIRE, four).fill_fastest([alone]) is None
    found = Layouts(cached, WIRE, ASSUMED).fill_fastest([alone])
    assert found is not None
    assert found.max_streams == 3


def test_more_streams_fill_more_stages_until_the_slowest_is_full() -> None:
    found = Layouts(TEN, WIRE, replace(ASSUMED, max_step_tokens=1)).balance([machine(memory=600)] * 2)
    assert found is not None
    round_trip = 10.0 + 3.0 + 2 / 1000
    assert found.decode_tok_per_s(1) == pytest.approx(1 / round_trip)
    assert found.decode_tok_per_s(2) == pytest.approx(2 / round_trip)
    assert found.decode_tok_per_s(3) == pytest.approx(1 / 5.0)
    assert found.decode_tok_per_s(50) == pytest.approx(1 / 5.0)


def test_steps_carry_several_streams_where_that_is_faster() -> None:
    found = Layouts(TEN, WIRE, ASSUMED).balance([machine(memory=600)] * 2)
    assert found is not None
    # Reading weights costs the same for four tokens as for one.
    assert found.decode_tok_per_s(12) == pytest.approx(4 / 5.0)


def test_prefill_overlaps_chunks() -> None:
    found = Layouts(TEN, WIRE, ASSUMED).balance([machine(memory=600)] * 2)
    assert found is not None
    hop = 1.0 + 4 * 2 / 1000
    assert found.prefill_s(8) == pytest.approx(5.0 + 5.0 + 1.0 + hop + 1.0 + 5.0)


def test_even_pieces_read_the_same_bytes_over_more_hops() -> None:
    found = Layouts(TEN, WIRE, ASSUMED).even_pieces(machine(memory=50), 20)
    assert not found.is_whole_layers
    assert found.token_s(is_printed=True) == pytest.approx(10.0 + 1.0 + 19 * (1.0 + 2 / 1000) + 1.0)
    assert found.slice_bytes == 50


def test_a_token_visits_only_the_pieces_of_its_experts() -> None:
    experts = model(EXPERT_LAYER, EXPERT_LAYER)
    found = Layouts(experts, WIRE, ASSUMED).even_pieces(machine(memory=50), 34)
    # Of the 17 pieces of a layer: one of the trunk, and one for each of two experts.
    assert found.hops_taken == pytest.approx(2 * 3 / 34)
    assert found.read_bytes_per_token == pytest.approx(2 * (50 + 2 * 100))


def test_known_boxes_come_out_as_people_measure_them() -> None:
    """Coarse anchors from other people's machines; the estimate may not leave their range."""
    catalogue = load_catalogue()
    given = default_assumptions(catalogue)
    for machine_name, model_name, low, high in (
        ("desktop-ddr4", "llama-3.1-8b", 6.0, 10.0),  # 5800X, DDR4-3200: specpicks
        ("m3-ultra-512", "kimi-k3", 4.0, 6.0),  # 137 GB a token at 819 GB/s bound it by 6
    ):
        kind = catalogue.machine(machine_name)
        quantisation = "q4_0" if model_name != "kimi-k3" else None
        layouts = Layouts(find_model(model_name, quantisation, catalogue), catalogue.link("gigabit"), given)
        found = layouts.fill_fastest([kind] * 4)
        assert found is not None
        assert low < 1 / found.token_s() < high
