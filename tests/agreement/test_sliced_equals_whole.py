"""A chain of slices gives the undivided model's logits, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Draw
from tests.support.greedy_runs import GREEDY, assert_same_runs, random_prompt, sliced_run, undivided_run
from tests.support.real_models import gemma_path, qwen_path
from tests.support.reference import Piece, Settings, UndividedModel
from tests.support.slice_chain import SliceChain, even_cuts
from tests.support.tiny_models import ARCHITECTURES, Architecture, WeightType, write_tiny_model

DECODE_STEPS = 32
TINY_LAYERS = 10


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiny_model_in_slices_equals_the_whole(architecture: Architecture, tmp_path: Path) -> None:
    path = write_tiny_model(
        tmp_path / "tiny.gguf", architecture, num_layers=TINY_LAYERS, seed=1, sliding_window=16
    )
    # Three chunks, two and a half windows.
    prompt = random_prompt(280, 41, seed=2)
    shape = {"chunk_tokens": 16, "steps": DECODE_STEPS}
    whole = undivided_run(path, prompt, cells=256, **shape)
    assert len({token for token, _ in whole}) > 4, "a text that repeats itself proves little"
    for num_slices in (2, 3, 5):
        cuts = even_cuts(TINY_LAYERS, num_slices)
        with SliceChain(path, cuts, tmp_path, cells=256, max_batch_tokens=16) as chain:
            assert_same_runs(sliced_run(chain, prompt, **shape), whole)


@pytest.mark.parametrize("weights", ["F16", "Q8_0"])
def test_uneven_slices_of_quantised_weights_equal_the_whole(weights: WeightType, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "qwen2", num_layers=7, weights=weights, seed=3)
    prompt = random_prompt(280, 30, seed=4)
    whole = undivided_run(path, prompt, cells=256, chunk_tokens=16, steps=8)
    cuts = [LayerRange(0, 1), LayerRange(1, 6), LayerRange(6, 7)]
    with SliceChain(path, cuts, tmp_path, cells=256, max_batch_tokens=16) as chain:
        assert_same_runs(sliced_run(chain, prompt, chunk_tokens=16, steps=8), whole)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_several_sequences_in_one_batch_equal_the_whole(architecture: Architecture, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, num_layers=6, seed=5, sliding_window=16)
    # Chunks of several sequences at once, then lone tokens; sequence 2 joins late.
    prompts = {seq: random_prompt(280, length, seed=seq) for seq, length in ((0, 9), (1, 21), (2, 13))}
    batches = [
        [(0, 0, 9), (1, 0, 7)],
        [(1, 7, 21), (2, 0, 1)],
        [(2, 1, 13)],
    ]
    settings = Settings(cells=256, max_sequences=3, max_batch_tokens=32)
    with (
        UndividedModel(path, settings) as model,
        SliceChain(path, even_cuts(6, 3), tmp_path, cells=256, max_sequences=3, max_batch_tokens=32) as chain,
    ):
        for batch in batches:
            wanted = model.compute([Piece(seq, a, prompts[seq][a:b]) for seq, a, b in batch])
            computed = chain.compute(
                [Chunk(seq, a, prompts[seq][a:b], Draw(GREEDY, b, ())) for seq, a, b in batch]
            )
            end = 0
            for (_, a, b), logits, drawn in zip(batch, wanted, computed.drawn, strict=True):
                end += b - a
                assert logits is not None
                assert np.array_equal(chain.last.logits(end - 1), logits)
                assert drawn == int(logits.argmax())
        for step in range(8):
            tokens = {seq: (7 * step + seq) % 280 for seq in prompts}
            wanted = model.compute(
                [Piece(seq, len(prompts[seq]) + step, [token]) for seq, token in tokens.items()]
            )
            chain.compute(
                [
                    Chunk(seq, len(prompts[seq]) + step, [token], Draw(GREEDY, 0, ()))
                    for seq, token in tokens.items()
                ]
            )
            for row, logits in enumerate(wanted):
                assert logits is not None
                assert np.array_equal(chain.last.logits(row), logits)


# Longer than Gemma's window of 512, in five chunks.
LONG_PROMPT_TOKENS = 600


def assert_real_model_agrees(path: Path, folder: Path, num_layers: int, steps: int) -> None:
    prompt = random_prompt(150_000, LONG_PROMPT_TOKENS, seed=6)
    shape = {"chunk_tokens": 128, "steps": steps}
    whole = undivided_run(path, prompt, cells=1024, **shape)
    for num_slices in (2, 3, 5):
        with SliceChain(path, even_cuts(num_layers, num_slices), folder, cells=1024) as chain:
            assert_same_runs(sliced_run(chain, prompt, **shape), whole)


@pytest.mark.timeout(600)  # may fetch the model first
def test_gemma_in_slices_equals_the_whole(tmp_path: Path) -> None:
    assert_real_model_agrees(gemma_path(), tmp_path, num_layers=18, steps=DECODE_STEPS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_qwen_in_slices_equals_the_whole(tmp_path: Path) -> None:
    assert_real_model_agrees(qwen_path(), tmp_path, num_layers=28, steps=DECODE_STEPS)
