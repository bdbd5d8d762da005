"""Layer, tensor and expert split, each counted by hand for one token."""

from __future__ import annotations

import pytest

from shoal.catalogue.loader import load_catalogue
from shoal.planner.model_source import find_model
from shoal.planner.splits import compare_splits, expert_split, layer_split, tensor_split
from tests.unit.planner.toys import EXPERT_LAYER, LAYER, WIRE, machine, model

EIGHT = model(*[LAYER] * 8, row_values=10)


def test_a_layer_split_reads_everything_in_turn_and_sends_one_row_a_cut() -> None:
    found = layer_split(EIGHT, machine(memory=200), WIRE, row_value_bytes=2)
    assert (found.machines, found.rounds, found.wire_bytes) == (4, 5, 3 * 20)
    assert found.memory_s == 800 / 100
    assert found.latency_s == 5 * 1.0
    assert found.transfer_s == 60 / 1000
    assert found.token_s == pytest.approx(8 + 5 + 0.06)
    assert found.is_possible


def test_one_machine_alone_sends_nothing() -> None:
    found = layer_split(EIGHT, machine(memory=2000), WIRE, row_value_bytes=2)
    assert (found.machines, found.rounds, found.wire_bytes) == (1, 0, 0)


def test_a_layer_that_fits_no_machine_makes_the_layer_split_impossible() -> None:
    found = layer_split(EIGHT, machine(memory=90), WIRE, row_value_bytes=2)
    assert not found.is_possible
    assert found.reason is not None
    assert "a layer takes 100 B" in found.reason
    assert found.machines == 8


def test_a_tensor_split_reads_in_parallel_and_reduces_twice_a_layer() -> None:
    found = tensor_split(EIGHT, machine(memory=200), WIRE, group=4, row_value_bytes=2)
    assert found.machines == 4
    assert found.memory_s == 800 / 4 / 100
    assert found.rounds == 8 * 2 * 2 + 2
    assert found.latency_s == 34 * 1.0
    assert found.wire_bytes == 8 * 2 * 4 * 2 * 20


def test_groups_in_a_row_hold_what_one_group_cannot() -> None:
    found = tensor_split(EIGHT, machine(memory=100), WIRE, group=2, row_value_bytes=2)
    assert found.machines == 2 * 4
    assert found.rounds == 8 * 2 * 1 + 5
    assert found.wire_bytes == 8 * 2 * 2 * 1 * 20 + 3 * 2 * 20


def test_an_expert_split_reads_one_expert_and_visits_k_machines() -> None:
    found = expert_split(
        model(EXPERT_LAYER, EXPERT_LAYER, row_values=10), machine(memory=200), WIRE, row_value_bytes=2
    )
    assert found is not None
    assert found.machines == 1 + 2 * 4
    assert found.rounds == 2 * 2 + 2
    assert found.wire_bytes == 2 * (2 * 2 * 4 * 2) + 1 * 20
    assert found.memory_s == (2 * 50 + 2 * 100) / 100


def test_a_dense_model_has_no_expert_split() -> None:
    assert expert_split(EIGHT, machine(), WIRE, row_value_bytes=2) is None
    names = [split.name for split in compare_splits(EIGHT, machine(), WIRE, row_value_bytes=2)]
    assert names == ["layer", "tensor, groups of 2"]


def test_k3_on_consoles_is_possible_only_below_a_layer() -> None:
    catalogue = load_catalogue()
    demand = find_model("kimi-k3", None, catalogue)
    found = compare_splits(demand, catalogue.machine("ps3"), catalogue.link("gigabit"), row_value_bytes=2)
    layer, *others = found
    assert not layer.is_possible
    assert layer.memory_s == pytest.approx(137.0e9 / 25.6e9, rel=0.001)
    assert all(other.is_possible for other in others)
    # Nothing brings a token of K3 below half a second on these machines and this link.
    assert min(other.token_s for other in others) > 0.5
