"""How a batch is cut into pieces for invariant mode, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from shoal.core.sequence import SamplingParams
from shoal.engine.interface import Chunk, Computed, Draw, Rows
from shoal.engine.pieces import compute_in_pieces, one_graph_batches, pieces_of

DRAW = Draw(SamplingParams(temperature=0), 0, ())


def _cut(*batch: tuple[int, int, int], most: int | None = 7) -> list[list[tuple[int, int]]]:
    """(sequence, number of tokens) of each piece, by batch, of chunks (sequence, tokens, of prompt)."""
    chunks = [Chunk(seq, 0, [1] * count, num_prompt=prompt) for seq, count, prompt in batch]
    return [[(piece.seq, len(piece.tokens)) for piece in part] for part in one_graph_batches(chunks, most)]


def test_single_tokens_of_consecutive_sequences_are_one_batch() -> None:
    assert _cut((2, 1, 0), (3, 1, 0), (4, 1, 0)) == [[(2, 1), (3, 1), (4, 1)]]


def test_a_gap_or_a_step_back_begins_another_batch() -> None:
    cut = _cut((0, 1, 0), (2, 1, 0), (3, 1, 0), (1, 1, 0), (1, 1, 0))
    assert cut == [[(0, 1)], [(2, 1), (3, 1)], [(1, 1)], [(1, 1)]]


def test_a_chunk_of_several_tokens_is_alone() -> None:
    cut = _cut((0, 1, 0), (1, 5, 0), (2, 1, 0), (3, 1, 0), (4, 2, 0))
    assert cut == [[(0, 1)], [(1, 5)], [(2, 1), (3, 1)], [(4, 2)]]


def test_a_lone_token_of_a_prompt_is_alone() -> None:
    assert _cut((0, 1, 0), (1, 1, 1), (2, 1, 0)) == [[(0, 1)], [(1, 1)], [(2, 1)]]


def test_more_answers_than_a_batch_may_have_are_cut() -> None:
    sessions = [(seq, 1, 0) for seq in range(9)]
    assert [len(part) for part in _cut(*sessions)] == [7, 2]
    assert [len(part) for part in _cut(*sessions, most=None)] == [9]


@pytest.mark.parametrize(
    ("num_tokens", "num_prompt", "most", "lengths"),
    [
        (100, 100, 7, [100]),
        (100, 300, 7, [100]),
        (20, 0, 7, [7, 7, 6]),
        (20, 5, 7, [5, 7, 7, 1]),
        (7, 0, 7, [7]),
        (20, 0, None, [20]),
        (20, 5, None, [5, 15]),
    ],
)
def test_a_chunk_is_cut_where_the_answer_begins_and_the_answer_in_short_pieces(
    num_tokens: int, num_prompt: int, most: int | None, lengths: list[int]
) -> None:
    chunk = Chunk(3, 10, range(num_tokens), DRAW, 5, num_prompt)
    pieces = pieces_of(chunk, most)
    assert [len(piece.tokens) for piece in pieces] == lengths
    assert [token for piece in pieces for token in piece.tokens] == list(range(num_tokens))
    assert [piece.start for piece in pieces] == [10 + sum(lengths[:number]) for number in range(len(lengths))]
    assert [piece.draw for piece in pieces] == [None] * (len(lengths) - 1) + [DRAW]
    assert {(piece.seq, piece.salt) for piece in pieces} == {(3, 5)}
    assert [piece.num_prompt > 0 for piece in pieces] == [num_prompt > 0] + [False] * (len(lengths) - 1)


def _echo(chunks: Sequence[Chunk], rows: Rows) -> Computed:
    assert len(rows) == sum(len(chunk.tokens) for chunk in chunks)
    return Computed(rows + 1, (None,) * len(chunks))


def _count(chunks: Sequence[Chunk], rows: Rows) -> Computed:
    return Computed(None, tuple(100 * c.seq + c.tokens[-1] if c.draw else None for c in chunks))


def test_rows_and_draws_come_back_in_the_order_of_the_chunks() -> None:
    chunks = [
        Chunk(0, 4, [1]),
        Chunk(1, 0, [2, 3, 4], DRAW, num_prompt=2),
        Chunk(5, 0, [5, 6]),
        Chunk(3, 9, [7], DRAW),
        Chunk(4, 9, [8], DRAW),
    ]
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    computed = compute_in_pieces(_echo, chunks, rows, 7)
    assert computed.rows is not None
    assert np.array_equal(computed.rows, rows + 1)
    assert computed.drawn == (None,) * 5
    assert compute_in_pieces(_count, chunks, rows, 7).drawn == (None, 104, None, 307, 408)
