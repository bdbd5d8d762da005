"""The same greedy answer from an undivided model and from a chain of slices, with all its logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.core.sequence import SamplingParams
from shoal.engine.interface import Chunk, Draw
from tests.support.reference import Piece, Settings, UndividedModel
from tests.support.slice_chain import SliceChain

GREEDY = SamplingParams(temperature=0)


def chunked(tokens: list[int], chunk_tokens: int) -> list[tuple[int, list[int]]]:
    return [(start, tokens[start : start + chunk_tokens]) for start in range(0, len(tokens), chunk_tokens)]


def random_prompt(n_vocab: int, num_tokens: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, n_vocab, num_tokens)]


def undivided_run(
    path: Path, prompt: list[int], *, cells: int, chunk_tokens: int, steps: int
) -> list[tuple[int, NDArray[np.float32]]]:
    """Greedy tokens and the logits that each was taken from."""
    run: list[tuple[int, NDArray[np.float32]]] = []
    with UndividedModel(path, Settings(cells=cells, max_batch_tokens=chunk_tokens)) as model:
        logits = None
        for start, tokens in chunked(prompt, chunk_tokens):
            is_end = start + len(tokens) == len(prompt)
            [logits] = model.compute([Piece(0, start, tokens, wants=is_end)])
        position = len(prompt)
        while True:
            assert logits is not None
            run.append((int(logits.argmax()), logits))
            if len(run) > steps:
                return run
            [logits] = model.compute([Piece(0, position, [run[-1][0]])])
            position += 1


def sliced_run(
    chain: SliceChain, prompt: list[int], *, chunk_tokens: int, steps: int
) -> list[tuple[int, NDArray[np.float32]]]:
    run: list[tuple[int, NDArray[np.float32]]] = []
    for start, tokens in chunked(prompt, chunk_tokens):
        end = start + len(tokens)
        draw = Draw(GREEDY, end, ()) if end == len(prompt) else None
        [drawn] = chain.compute([Chunk(0, start, tokens, draw)]).drawn
    row = len(tokens) - 1
    position = len(prompt)
    while True:
        assert drawn is not None
        run.append((drawn, chain.last.logits(row)))
        if len(run) > steps:
            return run
        [drawn] = chain.compute([Chunk(0, position, [drawn], Draw(GREEDY, position + 1, ()))]).drawn
        row = 0
        position += 1


def assert_same_runs(
    sliced: list[tuple[int, NDArray[np.float32]]], whole: list[tuple[int, NDArray[np.float32]]]
) -> None:
    assert [token for token, _ in sliced] == [token for token, _ in whole]
    for step, ((_, ours), (_, theirs)) in enumerate(zip(sliced, whole, strict=True)):
        assert np.array_equal(ours, theirs), f"step {step}: differ by {np.abs(ours - theirs).max()}"
