"""The engine of hashes: where the model is cut changes nothing, any fault of the protocol does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import EngineError, InvariantBroken, KvExhausted
from shoal.core.sequence import SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import ROW_WIDTH, DigestEngine
from shoal.engine.interface import Chunk, Draw, Rows

NUM_LAYERS = 6
N_VOCAB = 1 << 40  # so large that two different states never draw the same token by chance
GREEDY = SamplingParams(temperature=0.0)
PROMPT = (3, 1, 4, 1, 5, 9)


def _pipeline(*cuts: int, **switches: bool | int) -> list[DigestEngine]:
    bounds = [0, *cuts, NUM_LAYERS]
    return [
        DigestEngine(LayerRange(a, b), NUM_LAYERS, n_vocab=N_VOCAB, **switches)  # type: ignore[arg-type]
        for a, b in itertools.pairwise(bounds)
    ]


def _run(
    engines: list[DigestEngine],
    tokens: tuple[int, ...],
    *,
    start: int = 0,
    seq: int = 0,
    salt: int = 0,
    params: SamplingParams = GREEDY,
) -> int:
    """One chunk through all slices; returns what is drawn behind it."""
    rows: Rows | None = None
    draw = Draw(params, start + len(tokens), ())
    for engine in engines:
        computed = engine.compute([Chunk(seq, start, tokens, draw, salt)], rows)
        rows = computed.rows
    (token,) = computed.drawn
    assert token is not None
    return token


WHOLE = _run(_pipeline(), PROMPT)


@given(st.sets(st.integers(1, NUM_LAYERS - 1)))
def test_where_the_model_is_cut_does_not_change_what_is_drawn(cuts: set[int]) -> None:
    assert _run(_pipeline(*sorted(cuts)), PROMPT) == WHOLE


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_nor_does_the_length_of_the_chunks(lengths: list[int]) -> None:
    engines, start, token = _pipeline(2), 0, None
    while start < len(PROMPT):
        count = min(lengths[start % len(lengths)], len(PROMPT) - start)
        token = _run(engines, PROMPT[start : start + count], start=start)
        start += count
    assert token == WHOLE


def test_nor_do_the_neighbours_in_a_batch() -> None:
    first, last = _pipeline(3)
    chunks = [Chunk(4, 0, (8, 8), None), Chunk(0, 0, PROMPT, Draw(GREEDY, 6, ()))]
    rows = first.compute(chunks, None).rows
    assert last.compute(chunks, rows).drawn == (None, WHOLE)


@pytest.mark.parametrize(
    "tokens", [PROMPT[:-1], (*PROMPT, 9), (1, 3, 4, 1, 5, 9), (3, 1, 4, 1, 5, 8)], ids=str
)
def test_a_lost_repeated_reordered_or_changed_token_changes_what_is_drawn(tokens: tuple[int, ...]) -> None:
    assert _run(_pipeline(2, 4), tokens) != WHOLE


def _boundary_rows() -> Rows:
    rows = _pipeline(3)[0].compute([Chunk(0, 0, PROMPT)], None).rows
    assert rows is not None
    return rows


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 5), (1, 0, 2, 3, 4, 5), (0, 0, 2, 3, 4, 5)], ids=str
)
def test_lost_repeated_and_reordered_rows_change_what_is_drawn(order: tuple[int, ...]) -> None:
    last = _pipeline(3)[1]
    rows = _boundary_rows()[list(order)]
    chunk = Chunk(0, 0, tuple(order), Draw(GREEDY, 6, ()))
    assert last.compute([chunk], rows).drawn != (WHOLE,)


def test_rows_of_another_request_change_what_is_drawn() -> None:
    first, last = _pipeline(3)
    rows = first.compute([Chunk(0, 0, PROMPT, None, salt=1)], None).rows
    assert last.compute([Chunk(0, 0, PROMPT, Draw(GREEDY, 6, ()))], rows).drawn != (WHOLE,)


def test_rows_that_skip_a_stage_change_what_is_drawn() -> None:
    first, _, last = _pipeline(2, 4)
    rows = first.compute([Chunk(0, 0, PROMPT)], None).rows
    assert last.compute([Chunk(0, 0, PROMPT, Draw(GREEDY, 6, ()))], rows).drawn != (WHOLE,)


def test_state_that_is_left_of_another_session_changes_what_is_drawn() -> None:
    engines = _pipeline(3)
    _run(engines, (9, 9))
    assert _run(engines, PROMPT, start=2) != WHOLE
    for engine in engines:
        engine.clear(0)
    assert _run(engines, PROMPT) == WHOLE


def test_trimming_brings_back_the_state_that_was() -> None:
    engines = _pipeline(3)
    _run(engines, (*PROMPT[:4], 7, 7))
    assert all(engine.trim(0, 4) for engine in engines)
    assert _run(engines, PROMPT[4:], start=4) == WHOLE


def test_memory_that_cannot_trim_says_so_and_is_unchanged() -> None:
    (engine,) = _pipeline(can_trim=False)
    _run([engine], PROMPT)
    assert not engine.trim(0, 4)
    assert engine.cells_used == 6
    assert not engine.limits.can_trim


def test_low_bits_that_depend_on_the_batch_shape_can_be_switched_on() -> None:
    whole = _run(_pipeline(shape_sensitive=True), PROMPT)
    engines = _pipeline(shape_sensitive=True)
    _run(engines, PROMPT[:4])
    assert _run(engines, PROMPT[4:], start=4) != whole
    assert _run(_pipeline(2, 4, shape_sensitive=True), PROMPT) == whole


def test_greedy_ignores_the_seed_and_sampling_depends_on_seed_and_position() -> None:
    def drawn(temperature: float, seed: int) -> int:
        return _run(_pipeline(), PROMPT, params=SamplingParams(temperature=temperature, seed=seed))

    assert drawn(0.0, 1) == drawn(0.0, 2) == WHOLE
    assert drawn(1.0, 1) == drawn(1.0, 1) != drawn(1.0, 2)
    assert drawn(1.0, 1) != WHOLE


def test_a_failing_batch_leaves_nothing_of_its_sequences_and_all_of_the_others() -> None:
    failing: list[int] = []
    engine = DigestEngine(LayerRange(0, 6), 6, n_vocab=9, fails=lambda chunks: bool(failing))
    engine.compute([Chunk(0, 0, (1, 2)), Chunk(1, 0, (1,))], None)
    failing.append(1)
    with pytest.raises(EngineError, match="told to fail"):
        engine.compute([Chunk(0, 2, (3,))], None)
    assert engine.cells_used == 1


def test_cells_are_finite_and_a_batch_that_does_not_fit_changes_nothing() -> None:
    engine = DigestEngine(LayerRange(0, 6), 6, n_vocab=9, cells=5)
    engine.compute([Chunk(0, 0, (1, 2, 3))], None)
    with pytest.raises(KvExhausted, match="need 3 cells, 2 are free"):
        engine.compute([Chunk(1, 0, (1, 2, 3))], None)
    assert engine.cells_used == 3
    engine.compute([Chunk(1, 0, (1, 2))], None)
    engine.close()
    assert engine.cells_used == 0


def test_a_batch_has_a_limit() -> None:
    with pytest.raises(EngineError, match="batch of 9 tokens, 8 fit"):
        DigestEngine(LayerRange(0, 6), 6, n_vocab=9, max_batch_tokens=8).compute(
            [Chunk(0, 0, (1,) * 9)], None
        )


@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_gap_or_an_overlap_is_a_broken_invariant(start: int) -> None:
    (engine,) = _pipeline()
    engine.compute([Chunk(0, 0, (1, 2))], None)
    with pytest.raises(InvariantBroken, match="holds 2 tokens"):
        engine.compute([Chunk(0, start, (5,))], None)


def test_the_first_slice_takes_no_rows_and_every_other_needs_them() -> None:
    first, last = _pipeline(3)
    with pytest.raises(InvariantBroken):
        first.compute([Chunk(0, 0, (1,))], np.zeros((1, ROW_WIDTH), np.float32))
    with pytest.raises(InvariantBroken):
        last.compute([Chunk(0, 0, (1,))], None)
    with pytest.raises(InvariantBroken, match="behind 1 tokens"):
        last.compute([Chunk(0, 0, (1,))], np.zeros((2, ROW_WIDTH), np.float32))


def test_progress_moves_while_it_computes() -> None:
    (engine,) = _pipeline()
    _run([engine], PROMPT)
    assert engine.progress == len(PROMPT) * NUM_LAYERS
