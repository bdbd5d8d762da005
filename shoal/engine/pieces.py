"""A batch as invariant mode computes it: in pieces that each are one graph of llama.cpp.

Owns the cutting and the putting together again. Pure; why it must be so is told in invariance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from shoal.engine.interface import Chunk, Computed, Drawn, Rows

ComputeBatch = Callable[[Sequence[Chunk], Rows], Computed]


def compute_in_pieces(
    compute_batch: ComputeBatch, chunks: Sequence[Chunk], rows: Rows, most: int | None
) -> Computed:
    """What `compute_batch` makes of `chunks`, asked for one batch after the other. most: tokens of
    answers in one."""
    batches = one_graph_batches(chunks, most)
    if len(batches) == 1:
        return compute_batch(chunks, rows)
    draws: list[Drawn | None] = []
    outputs: list[Rows] = []
    end = 0
    for batch in batches:
        begin, end = end, end + sum(len(piece.tokens) for piece in batch)
        part = compute_batch(batch, rows[begin:end])
        draws += [part.drawn_behind(index) for index in range(len(batch))]
        if part.rows is not None:
            outputs.append(part.rows)
    if outputs:
        return Computed(np.concatenate(outputs), (None,) * len(chunks))
    # What is drawn behind a chunk is drawn behind its last piece.
    last_pieces = accumulate(len(pieces_of(chunk, most)) for chunk in chunks)
    return Computed.by_last_slice([draws[stop - 1] for stop in last_pieces])


def one_graph_batches(chunks: Sequence[Chunk], most: int | None) -> list[Sequence[Chunk]]:
    """Cut a batch to the rules, and where llama.cpp would cut it (llama-batch.cpp, `split_equal`):
    a chunk of several tokens alone, and prompt and answer apart; single tokens of answers together,
    `most` of them, as long as each is of the next higher sequence."""
    batches: list[list[Chunk]] = []
    for chunk in chunks:
        for piece in pieces_of(chunk, most):
            if batches and _joins(piece, batches[-1], most):
                batches[-1].append(piece)
            else:
                batches.append([piece])
    return list(batches)


def pieces_of(chunk: Chunk, most: int | None) -> list[Chunk]:
    """A chunk's part of the prompt and its part of the answer, this in pieces of `most` tokens."""
    num_tokens = len(chunk.tokens)
    num_prompt = min(chunk.num_prompt, num_tokens)
    if num_prompt == num_tokens or (not num_prompt and (most is None or num_tokens <= most)):
        return [chunk]
    bounds = [*range(num_prompt, num_tokens, most or num_tokens), num_tokens]
    if num_prompt:
        bounds.insert(0, 0)
    return [
        replace(
            chunk,
            start=chunk.start + begin,
            tokens=chunk.tokens[begin:end],
            draw=chunk.draw if end == num_tokens else None,
            num_prompt=max(0, num_prompt - begin),
        )
        for begin, end in pairwise(bounds)
    ]


def _joins(piece: Chunk, batch: Sequence[Chunk], most: int | None) -> bool:
    last = batch[-1]
    are_single = len(piece.tokens) == len(last.tokens) == 1
    are_answers = not piece.num_prompt and not last.num_prompt
    has_room = most is None or len(batch) < most
    return are_single and are_answers and has_room and piece.seq == last.seq + 1
