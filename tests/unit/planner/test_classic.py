"""The figures that everybody prints for 100,000 PS3s, computed from the catalogue."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.units import PETA, TIB
from shoal.planner import cost_model
from shoal.planner.classic import classic_pair
from shoal.planner.cluster import Cluster, parse_cluster


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="module")
def consoles(catalogue: Catalogue) -> Cluster:
    return parse_cluster(["100000xPS3"], catalogue)


def test_a_hundred_thousand_consoles_add_up(consoles: Cluster) -> None:
    assert consoles.marketed_ops_per_s / PETA == pytest.approx(20.00, abs=0.005)
    assert consoles.usable_ops_per_s / PETA == pytest.approx(15.36, abs=0.005)
    assert consoles.memory_bytes / TIB == pytest.approx(24.41, abs=0.005)
    assert consoles.memory_bytes_per_s / PETA == pytest.approx(2.56, abs=0.005)


def test_launch_consoles_draw_20_mw_and_later_ones_half(catalogue: Catalogue, consoles: Cluster) -> None:
    assert consoles.power_w == 20e6
    slim = parse_cluster(["100000xPS3-slim"], catalogue).power_w
    later = parse_cluster(["100000xPS3-slim-2100"], catalogue).power_w
    assert 7.6e6 <= later <= slim <= 10.7e6


def test_20_mw_cost_57_600_dollars_a_day(catalogue: Catalogue, consoles: Cluster) -> None:
    hourly = cost_model.electricity_usd_per_hour(consoles.power_w, catalogue.price("electricity"))
    assert 24 * hourly == pytest.approx(57_600)


def test_the_classic_pair_needs_53_and_131_consoles(catalogue: Catalogue) -> None:
    small, large = classic_pair(catalogue.machine("ps3"), catalogue)
    assert (small.nodes, large.nodes) == (53, 131)
    assert small.exact_nodes == pytest.approx(52.154, abs=0.001)
    assert large.exact_nodes == pytest.approx(130.385, abs=0.001)
    assert (small.usable_nodes, large.usable_nodes) == (67, 167)
    assert large.real_nodes == 148


def test_52_and_128_are_recognised_as_rounding_errors(catalogue: Catalogue) -> None:
    small, large = classic_pair(catalogue.machine("ps3"), catalogue)
    assert [nodes for nodes, _ in small.slips] == [52]
    assert "rounded down instead of up" in small.slips[0][1]
    assert dict(large.slips)[128] == "32.60 GiB rounded down to 32 before dividing"


def test_a_count_that_needs_no_rounding_has_no_slips(catalogue: Catalogue) -> None:
    for count in classic_pair(catalogue.machine("h100"), catalogue):
        assert count.nodes == 1
        assert count.slips == ()


def test_a_machine_that_divides_the_bytes_evenly_leaves_nothing_to_round(catalogue: Catalogue) -> None:
    half = dataclasses.replace(catalogue.machine("h100"), memory_bytes=7_000_000_000)
    small = classic_pair(half, catalogue)[0]
    assert (small.nodes, small.exact_nodes) == (2, 2.0)
    assert 2 not in [nodes for nodes, _ in small.slips]


def test_one_stream_over_the_chain_takes_0_55_and_1_37_seconds(catalogue: Catalogue) -> None:
    kind = catalogue.machine("ps3")
    assert kind.memory_bytes / kind.memory_bytes_per_s == pytest.approx(10.49e-3, abs=0.005e-3)
    small, large = classic_pair(kind, catalogue)
    assert small.chain_s == pytest.approx(0.547, abs=0.001)
    assert large.chain_s == pytest.approx(1.367, abs=0.001)


def test_hops_of_the_70b_chain_take_39_ms(catalogue: Catalogue) -> None:
    assert 131 * cost_model.hop_s(catalogue.link("gigabit"), 0) == pytest.approx(39e-3, abs=0.5e-3)


def test_published_files_of_large_models_need_their_counts_of_consoles(catalogue: Catalogue) -> None:
    memory = catalogue.machine("ps3").memory_bytes
    for gb, nodes in ((1561.0, 5816), (155.1, 578), (849.7, 3166)):
        assert cost_model.nodes_for_bytes(gb * 1e9, memory) == nodes


def test_refilling_a_console_takes_2_28_seconds(catalogue: Catalogue) -> None:
    link = catalogue.link("gigabit")
    assert catalogue.machine("ps3").memory_bytes / link.bytes_per_s == pytest.approx(2.28, abs=0.01)
