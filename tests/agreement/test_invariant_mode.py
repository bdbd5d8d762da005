"""Invariant mode: a token's logits are the same bits whatever they are computed with, and where the
model is cut. Under load: test_invariant_under_load.py."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from llama_cpp import llama_cpp

from tests.support.greedy_runs import random_prompt
from tests.support.invariant_runs import Run, differing
from tests.support.quantise import quantised
from tests.support.real_models import gemma_path, qwen_path
from tests.support.tiny_models import ARCHITECTURES, Architecture, WeightType, write_tiny_model

LENGTHS = (1, 3, 8, 64)
SLICES = (2, 3, 5)
TINY_LAYERS = 10
# Two chunks of 64 with a lone token behind them; eight of gemma3's windows. The 75th token is the
# answer's first, so that chunks begin, end and go on there.
TEXT = random_prompt(280, 129, seed=1)
NUM_PROMPT = 74


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_chunks_through_any_slices_give_the_same_bits(
    architecture: Architecture, weights: WeightType, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, num_layers=TINY_LAYERS, weights=weights)
    assert differing(Run(path, tmp_path, TINY_LAYERS, TEXT, NUM_PROMPT), SLICES, LENGTHS) == []


@pytest.mark.parametrize("quantisation", ["Q2_K", "Q4_K_M", "IQ4_NL", "BF16"])
def test_any_quantisation_gives_the_same_bits(quantisation: str, tmp_path: Path) -> None:
    run = _quantised_run("qwen3", quantisation, tmp_path)
    assert differing(run, [2], LENGTHS) == []


# llama.cpp takes the switch that experts need once a process, before it has computed anything.
def test_quantised_experts_give_the_same_bits(tmp_path: Path) -> None:
    run = _quantised_run("qwen3moe", "Q4_K_M", tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(differing, (run, [2], LENGTHS)) == []


def test_a_sliding_window_that_has_moved_on_gives_the_same_bits(tmp_path: Path) -> None:
    # Longer than the 256 cells that llama.cpp would give a window of 16 by itself.
    text = random_prompt(280, 500, seed=2)
    path = write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=TINY_LAYERS, sliding_window=16)
    assert differing(Run(path, tmp_path, TINY_LAYERS, text, 400), [3], LENGTHS) == []


def test_default_mode_does_not_promise_that(tmp_path: Path) -> None:
    # Not a wish, but the proof that the tests above can fail.
    path = write_tiny_model(tmp_path / "tiny.gguf", "qwen2", num_layers=TINY_LAYERS, weights="F16")
    run = Run(path, tmp_path, TINY_LAYERS, TEXT, NUM_PROMPT, invariant=False)
    for length in (3, 8, 64):
        assert differing(run, [3], [length])


@pytest.mark.timeout(600)  # may fetch the model first
def test_any_chunks_of_gemma_give_the_same_bits(tmp_path: Path) -> None:
    run = Run(gemma_path(), tmp_path, 18, random_prompt(200_000, 66, seed=3), 40)
    assert differing(run, [3], (3, 8, 64)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_chunks_through_any_slices_of_qwen_give_the_same_bits(tmp_path: Path) -> None:
    run = Run(qwen_path(), tmp_path, 28, random_prompt(150_000, 97, seed=4), 70)
    assert differing(run, SLICES, (3, 8, 64), threads=2) == []


def _quantised_run(architecture: Architecture, quantisation: str, folder: Path) -> Run:
    # 256 values are a block of these kinds. Small differences only show after many layers: activations
    # are rounded for every product.
    whole = write_tiny_model(folder / "whole.gguf", architecture, num_layers=TINY_LAYERS, n_embd=512)
    path = quantised(whole, folder / "tiny.gguf", getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{quantisation}"))
    return Run(path, folder, TINY_LAYERS, TEXT, NUM_PROMPT)
