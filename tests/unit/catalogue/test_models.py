"""Every model's published figures, counted again from its layers."""

from __future__ import annotations

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.planner.demand import demand_of
from shoal.planner.model_demand import ModelDemand


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


# name, parameters and active ones (10^9), GB at 4.5 and 8.5 bits, cache bytes a token at 16 bits
PUBLISHED = [
    ("kimi-k3", 2779.5, 104.19, None, 2953.0, 27_648),
    ("kimi-k2", 1026.4, 31.7, 578.0, 1091.0, 70_272),
    ("deepseek-v3", 671.0, 36.6, 378.0, 713.0, 70_272),
    ("deepseek-v4-flash", 284.3, 13.3, None, 302.0, 5_536 + 1_344),
    ("deepseek-v4-pro", 1573.0, 48.9, None, 1671.0, 7_928 + 1_920),
    ("qwen3-30b-a3b", 30.5, 3.0, 17.2, 32.4, 98_304),
    ("qwen3-235b-a22b", 235.1, 21.6, 132.0, 250.0, 192_512),
    ("qwen3.5-35b-a3b", 34.7, 2.9, None, None, 20_480),
    ("qwen3.5-122b-a10b", 122.1, 9.0, None, None, 24_576),
    ("qwen3.5-397b-a17b", 396.3, 16.3, None, None, 30_720),
    ("gpt-oss-20b", 20.9, 3.6, None, None, 24_576),
    ("gpt-oss-120b", 116.8, 5.1, None, None, 36_864),
    ("glm-4.7", 352.8, 32.9, 198.6, 375.0, 376_832),
    ("glm-4.5-air", 106.9, 12.8, 60.0, 114.0, 188_416),
    ("glm-5", 743.9, 40.8, None, None, 89_856 + 19_968),
    ("minimax-m2", 228.7, 10.4, 128.7, 243.0, 253_952),
    ("qwen3-0.6b", 0.596, None, 0.34, 0.63, 114_688),
    ("qwen3-1.7b", 1.720, None, 0.97, 1.83, 114_688),
    ("qwen3-4b", 4.022, None, 2.26, 4.27, 147_456),
    ("qwen3-8b", 8.190, None, 4.61, 8.70, 147_456),
    ("qwen3-14b", 14.768, None, 8.31, 15.7, 163_840),
    ("qwen3-32b", 32.761, None, 18.4, 34.8, 262_144),
    ("qwen3.5-0.8b", 0.752, None, 0.42, 0.80, 12_288),
    ("qwen3.5-4b", 4.206, None, 2.37, 4.47, 32_768),
    ("qwen3.5-9b", 8.954, None, 5.04, 9.51, 32_768),
    ("qwen3.5-27b", 26.895, None, 15.1, 28.6, 65_536),
    ("gemma-3-270m", 0.268098, None, 0.15, 0.28, 3_072),
    ("gemma-3-1b", 1.000, None, 0.56, 1.06, 4_096),
    ("gemma-3-4b", 3.880, None, 2.18, 4.12, 20_480),
    ("gemma-3-27b", 27.008, None, 15.2, 28.7, 81_920),
    ("gemma-4-26b-a4b", 25.2, 3.8, None, None, 20_480),
    ("gemma-4-31b", 30.7, None, None, None, 81_920),
    ("gemma-4-e2b", None, None, None, None, 6_144),
    ("gemma-4-e4b", None, None, None, None, 16_384),
    ("llama-3.2-1b", 1.236, None, None, None, 32_768),
    ("llama-3.2-3b", 3.213, None, None, None, 114_688),
    ("llama-3.1-8b", 8.030, None, None, None, 131_072),
    ("llama-70b", 70.552, None, None, None, 327_680),
    ("llama-3.1-405b", 405.85, None, 228.0, 431.0, 516_096),
    ("llama-7b", 6.738, None, None, None, 524_288),
    ("gemma-3-12b", 11.77, None, None, None, 65_536),
    ("qwen2.5-coder-1.5b", 1.777086, None, None, None, 28_672),
    # llama.cpp's label is 428B-A23B; the block indexer is not counted here.
    ("minimax-m3", 426.0, 24.5, 240.0, 453.0, 122_880),
]


def at(catalogue: Catalogue, name: str, quantisation: str) -> ModelDemand:
    return demand_of(catalogue.model(name), catalogue.quantisation(quantisation))


def is_as_published(counted: float, published: float | None, share: float = 1e-3) -> bool:
    """Within `share`, or within the last digit that was published."""
    if published is None:
        return True
    digit = 10.0 ** -len(f"{published:f}".rstrip("0").partition(".")[2])
    return abs(counted - published) <= max(share * published, 0.51 * digit)


@pytest.mark.parametrize(("name", "total", "active", "gb_4", "gb_8", "kv"), PUBLISHED)
def test_a_model_counts_up_to_its_published_figures(
    catalogue: Catalogue,
    name: str,
    total: float | None,
    active: float | None,
    gb_4: float | None,
    gb_8: float | None,
    kv: int,
) -> None:
    four, eight = at(catalogue, name, "q4_0"), at(catalogue, name, "q8_0")
    assert is_as_published(four.parameters / 1e9, total)
    assert is_as_published(four.active_parameters / 1e9, active)
    assert is_as_published(four.weight_bytes / 1e9, gb_4, 2e-3)
    assert is_as_published(eight.weight_bytes / 1e9, gb_8, 2e-3)
    assert four.kv_bytes_per_token == kv


def test_every_model_of_the_catalogue_is_held_to_a_published_figure(catalogue: Catalogue) -> None:
    assert set(catalogue.models) == {row[0] for row in PUBLISHED}


@pytest.mark.parametrize(
    ("name", "quantisation", "gb", "tolerance"),
    [
        ("kimi-k3", "mxfp4-bf16", 1561.0, 0.001),
        ("kimi-k2", "int4-bf16", 595.1, 0.002),
        ("deepseek-v4-flash", "fp4-fp8", 155.1, 0.003),
        ("deepseek-v4-pro", "fp4-fp8", 849.7, 0.001),
        ("gpt-oss-20b", "mxfp4-q8", 12.03, 0.01),
        ("gpt-oss-120b", "mxfp4-q8", 63.2, 0.01),
        ("glm-5", "mxfp4-q8", 405.5, 0.01),
    ],
)
def test_files_in_the_published_format_have_the_published_size(
    catalogue: Catalogue, name: str, quantisation: str, gb: float, tolerance: float
) -> None:
    assert at(catalogue, name, quantisation).weight_bytes / 1e9 == pytest.approx(gb, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "mb"),
    [
        ("kimi-k3", 465),
        ("qwen3.5-35b-a3b", 65.8),
        ("qwen3.5-122b-a10b", 156),
        ("qwen3.5-397b-a17b", 195),
        ("qwen3.5-27b", 157),
        ("qwen3.5-0.8b", 20.2),
        ("qwen3.5-4b", 53),
    ],
)
def test_recurrent_state_a_sequence_is_as_published(catalogue: Catalogue, name: str, mb: float) -> None:
    assert at(catalogue, name, "f16").state_bytes / 1e6 == pytest.approx(mb, rel=0.01)


@pytest.mark.parametrize(
    ("name", "mb"), [("gemma-4-26b-a4b", 210), ("gemma-4-31b", 839), ("deepseek-v4-flash", 5.6)]
)
def test_full_windows_take_their_published_bytes(catalogue: Catalogue, name: str, mb: float) -> None:
    demand = at(catalogue, name, "f16")
    full = demand.kv_bytes(100_000) - 100_000 * demand.kv_bytes_per_token
    assert full / 1e6 == pytest.approx(mb, rel=0.01)


@pytest.fixture(scope="module")
def native() -> ModelDemand:
    """Kimi K3, section by section, because its published label is wrong by a factor of two."""
    return at(load_catalogue(), "kimi-k3", "mxfp4-bf16")


def test_one_expert_of_k3_is_the_measured_size(native: ModelDemand) -> None:
    assert native.layers[1].expert_parameters == 33_030_144
    assert native.layers[1].expert_bytes == 17_547_264


def test_one_layers_experts_of_k3_take_15_7_gb(native: ModelDemand) -> None:
    experts = native.layers[1].num_experts * native.layers[1].expert_bytes
    assert experts / 1e9 == pytest.approx(15.72, abs=0.005)


def test_the_routed_part_of_k3s_104_b_is_the_label(native: ModelDemand) -> None:
    routed = sum(layer.experts_per_token * layer.expert_parameters for layer in native.layers)
    assert round(routed / 1e9, 1) == 48.6
    assert round(native.active_parameters / 1e9, 2) == 104.19


def test_a_token_of_k3_reads_137_gb_most_of_it_trunk(native: ModelDemand) -> None:
    routed = sum(layer.experts_per_token * layer.expert_bytes for layer in native.layers)
    assert routed / 1e9 == pytest.approx(25.8, abs=0.05)
    assert native.active_bytes / 1e9 == pytest.approx(137.0, abs=0.1)


def test_quantising_k3s_trunk_saves_more_than_anything_done_to_experts(native: ModelDemand) -> None:
    for quantisation, trunk_gb in (("q8_0", 59), ("q4_0", 31)):
        demand = at(load_catalogue(), "kimi-k3", quantisation)
        trunk = sum(layer.trunk_bytes for layer in demand.layers) + demand.head_bytes
        assert trunk / 1e9 == pytest.approx(trunk_gb, abs=0.5)


def test_a_cut_of_k3_ships_the_bank(native: ModelDemand) -> None:
    payloads = [native.payload_bytes(cut, bytes_per_value=2) for cut in range(1, 93)]
    assert payloads == sorted(payloads)
    assert (payloads[0], payloads[-1]) == (28_672, 129_024)
    assert [native.payload_bytes(cut, bytes_per_value=2) for cut in (12, 13)] == [28_672, 43_008]


def test_k3s_state_equals_16_800_tokens_of_its_cache(native: ModelDemand) -> None:
    assert native.state_bytes / native.kv_bytes_per_token == pytest.approx(16_800, rel=0.001)


def test_v4_ships_four_streams(catalogue: Catalogue) -> None:
    for name, payload in (("deepseek-v4-flash", 32_768), ("deepseek-v4-pro", 57_344)):
        demand = at(catalogue, name, "f16")
        cuts = range(1, demand.num_layers)
        assert {demand.payload_bytes(cut, bytes_per_value=2) for cut in cuts} == {payload}
