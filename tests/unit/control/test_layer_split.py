"""How layers are split over nodes, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.layer_split import (
    CacheNeed,
    Node,
    check_cuts,
    check_memory,
    ranges_of_cuts,
    split_layers,
    stage_cost,
    worker_bytes,
)
from shoal.core.errors import ConfigError, IllegalCut, InsufficientMemory
from shoal.core.placement import NodeId
from shoal.core.specs import LayerRange, ModelSpec

MIB = 2**20
CACHE = CacheNeed(cells=1024, journal_bytes=64 * MIB)


def spec_of(layer_bytes: list[int], *, head_bytes: int = 0) -> ModelSpec:
    return ModelSpec(
        name="model",
        architecture="llama",
        num_layers=len(layer_bytes),
        n_embd=64,
        n_vocab=100,
        n_ctx_train=4096,
        layer_bytes=tuple(layer_bytes),
        embedding_bytes=head_bytes,
        head_bytes=head_bytes,
        kv_bytes_per_token=(256,) * len(layer_bytes),
        content_id="0",
    )


def nodes_of(
    count: int, *, usable_bytes: int = 2**40, speeds: list[float] | None = None, shared: bool = False
) -> list[Node]:
    return [
        Node(
            NodeId(f"n{index}"),
            "one" if shared else f"machine {index}",
            usable_bytes,
            speeds[index] if speeds else 1.0,
        )
        for index in range(count)
    ]


@st.composite
def split_problems(draw: st.DrawFn) -> tuple[ModelSpec, list[int], list[Node]]:
    layer_bytes = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=9))
    spec = spec_of(layer_bytes, head_bytes=draw(st.integers(0, 3000)))
    every_cut = range(1, spec.num_layers)
    legal = sorted(draw(st.sets(st.sampled_from(every_cut)))) if every_cut else []
    speeds = draw(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=len(legal) + 1))
    return spec, legal, nodes_of(len(speeds), speeds=speeds)


@given(split_problems())
def test_a_split_covers_all_layers_once_at_legal_cuts_with_no_node_empty(
    problem: tuple[ModelSpec, list[int], list[Node]],
) -> None:
    spec, legal, nodes = problem
    ranges = split_layers(spec, legal, nodes, CACHE)
    assert [layer for layers in ranges for layer in range(*layers)] == list(range(spec.num_layers))
    assert len(ranges) == len(nodes)
    assert all(layers.num_layers > 0 for layers in ranges)
    assert all(layers.start in legal for layers in ranges[1:])


@given(split_problems())
def test_no_other_split_has_a_faster_slowest_stage(
    problem: tuple[ModelSpec, list[int], list[Node]],
) -> None:
    spec, legal, nodes = problem

    def slowest(ranges: tuple[LayerRange, ...]) -> float:
        return max(stage_cost(spec, layers) / node.speed for layers, node in zip(ranges, nodes, strict=True))

    chosen = slowest(split_layers(spec, legal, nodes, CACHE))
    alternatives = itertools.combinations(legal, len(nodes) - 1)
    assert chosen == min(slowest(ranges_of_cuts(spec.num_layers, cuts)) for cuts in alternatives)


def test_the_last_stage_gets_fewer_layers_because_it_carries_the_head() -> None:
    spec = spec_of([100] * 12, head_bytes=430)  # counts for 301
    assert split_layers(spec, range(1, 12), nodes_of(3), CACHE) == ((0, 5), (5, 10), (10, 12))


def test_the_head_counts_for_less_than_layers_of_its_size() -> None:
    # At full weight ((0, 7), (7, 10)) would be even.
    spec = spec_of([100] * 10, head_bytes=400)
    assert split_layers(spec, range(1, 10), nodes_of(2), CACHE) == ((0, 6), (6, 10))
    assert stage_cost(spec, LayerRange(6, 10)) == pytest.approx(400 + 280)


def test_a_slow_node_gets_fewer_layers() -> None:
    spec = spec_of([100] * 12)
    assert split_layers(spec, range(1, 12), nodes_of(2, speeds=[1.0, 2.0]), CACHE) == ((0, 4), (4, 12))


def test_a_node_with_little_memory_gets_what_fits_rather_than_its_share() -> None:
    spec = spec_of([100 * MIB] * 4)
    small = Node(NodeId("small"), "a", worker_bytes(spec, LayerRange(0, 1), CACHE))
    large = Node(NodeId("large"), "b", 2**40)
    assert split_layers(spec, range(1, 4), [small, large], CACHE) == ((0, 1), (1, 4))


def test_more_nodes_than_slices_is_refused_with_the_number_that_works() -> None:
    with pytest.raises(ConfigError, match=r"at most 3 slices, but 4 nodes .* Use --nodes 3"):
        split_layers(spec_of([1, 1, 1]), [1, 2], nodes_of(4), CACHE)


def test_an_illegal_cut_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(IllegalCut, match=r"before layer 5\. Legal cuts are 1 to 3, 6\."):
        check_cuts(spec_of([1] * 8), [1, 2, 3, 6], [2, 5])


@pytest.mark.parametrize("cuts", [[4, 2], [2, 2]])
def test_cuts_out_of_order_are_refused(cuts: list[int]) -> None:
    with pytest.raises(IllegalCut, match="not in rising order"):
        check_cuts(spec_of([1] * 8), range(1, 8), cuts)


def test_given_cuts_become_ranges() -> None:
    assert check_cuts(spec_of([1] * 8), range(1, 8), [2, 5]) == ((0, 2), (2, 5), (5, 8))


def test_nodes_on_one_machine_share_its_memory() -> None:
    spec = spec_of([100 * MIB] * 2)
    ranges = ranges_of_cuts(2, [1])
    enough_for_one = worker_bytes(spec, ranges[0], CACHE) + MIB
    check_memory(spec, ranges, nodes_of(2, usable_bytes=enough_for_one), CACHE)
    with pytest.raises(
        InsufficientMemory, match=r"Node n1 cannot hold layers \[1, 2\): needs 4\d\d MiB, has 1"
    ):
        check_memory(spec, ranges, nodes_of(2, usable_bytes=enough_for_one, shared=True), CACHE)


def test_a_journal_never_needs_more_than_its_cells_can_fill() -> None:
    spec = spec_of([100])
    few_cells = CacheNeed(cells=10, journal_bytes=2**40)
    no_journal = CacheNeed(cells=10, journal_bytes=0)
    layers = LayerRange(0, 1)
    assert worker_bytes(spec, layers, few_cells) - worker_bytes(spec, layers, no_journal) == 10 * 64 * 4
