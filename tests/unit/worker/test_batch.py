"""Rows and chunks between entries and the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.placement import DRIVER
from shoal.core.sequence import Logprobs, SamplingParams
from shoal.engine.interface import Computed, Drawn
from shoal.wire.messages import Entry, Open, Step
from shoal.worker.batch import chunk_of, input_rows, output_rows, outputs, split_rows
from shoal.worker.job import Planned
from shoal.worker.journal import Journal
from shoal.worker.residency import Part, Residency, Task

WIDTH = 2
SAMPLING = SamplingParams(temperature=0.5, top_k=4, top_p=0.9, min_p=0.1, seed=6)


def _residency(session: int, held: int, sampling: SamplingParams = SAMPLING) -> Residency:
    residency = Residency(session, DRIVER, Journal(WIDTH, 100), Open(session, 0, 2, 100, sampling))
    residency.seq = session
    if held:
        rows = np.array([[session, p] for p in range(held)], np.float32)
        residency.advance(list(range(held)), rows, None)
    return residency


def _entry(session: int, start: int, stop: int, *, sample: bool = False) -> Entry:
    return Entry(session, 0, start, tuple(range(start, stop)), sample)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_each_entry_gets_a_view_of_its_own_rows(lengths: list[int]) -> None:
    rows = np.arange(sum(lengths) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    entries = [_entry(number, 0, length) for number, length in enumerate(lengths)]
    parts = split_rows(entries, rows, WIDTH)
    assert parts is not None
    pieces = [part.rows for part in parts]
    assert all(piece is not None and np.shares_memory(piece, rows) for piece in pieces)
    np.testing.assert_array_equal(np.concatenate([p for p in pieces if p is not None]), rows)


@pytest.mark.parametrize("shape", [(4, WIDTH), (6, WIDTH), (5, WIDTH + 1), (5 * WIDTH,)])
def test_rows_of_any_other_shape_do_not_fit(shape: tuple[int, ...]) -> None:
    assert split_rows([_entry(1, 0, 5)], np.zeros(shape, np.float32), WIDTH) is None


def test_rows_are_missed_where_they_must_be_and_refused_where_they_must_not() -> None:
    assert split_rows([_entry(1, 0, 5)], None, WIDTH) is None
    assert split_rows([_entry(1, 0, 5)], np.zeros((5, WIDTH), np.float32), None) is None
    assert split_rows([_entry(1, 0, 5)], None, None) == [Part(_entry(1, 0, 5), None)]


@pytest.mark.parametrize(
    ("held", "stop", "num_prompt"), [(0, 1, 2), (0, 5, 2), (1, 2, 1), (2, 3, 0), (4, 5, 0)]
)
def test_a_chunk_says_how_many_of_its_tokens_the_prompt_still_has(
    held: int, stop: int, num_prompt: int
) -> None:
    assert chunk_of(_residency(3, held), _entry(3, 0, stop), may_draw=True).num_prompt == num_prompt


def test_a_chunk_is_what_is_not_held_yet_and_draws_only_where_it_may() -> None:
    residency = _residency(3, held=4)
    chunk = chunk_of(residency, _entry(3, 1, 7, sample=True), may_draw=True)
    assert (chunk.seq, chunk.start, tuple(chunk.tokens), chunk.salt) == (3, 4, (4, 5, 6), 6)
    assert chunk.draw is not None
    assert (chunk.draw.position, chunk.draw.params) == (7, SAMPLING)
    assert chunk_of(residency, _entry(3, 1, 7, sample=True), may_draw=False).draw is None
    assert chunk_of(residency, _entry(3, 1, 7), may_draw=True).draw is None


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_the_answer_so_far_comes_only_with_draws_that_depend_on_it(name: str) -> None:
    penalised = _residency(3, held=4, sampling=replace(SAMPLING, **{name: 1.0}))
    draw = chunk_of(penalised, _entry(3, 1, 7, sample=True), may_draw=True).draw
    assert draw is not None
    assert list(draw.generated) == [2, 3, 4, 5, 6]
    draw = chunk_of(_residency(3, held=4), _entry(3, 1, 7, sample=True), may_draw=True).draw
    assert draw is not None
    assert draw.generated == ()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=5))
def test_inputs_are_the_rows_of_just_what_is_computed(shapes: list[tuple[int, int]]) -> None:
    """shapes: tokens held of an entry of that many tokens, for each session."""
    entries = [_entry(session, 0, count) for session, (_, count) in enumerate(shapes)]
    rows = np.array([[e.session, p] for e in entries for p in range(e.stop)], np.float32)
    parts = split_rows(entries, rows, WIDTH)
    assert parts is not None
    planned, want = [], []
    for part, (held, count) in zip(parts, shapes, strict=True):
        is_computed = held < count
        planned.append(
            Planned(part, _residency(part.entry.session, min(held, count)), 0 if is_computed else None)
        )
        want += [[part.entry.session, position] for position in range(held, count)]
    if not want:
        return
    task = Task(Step(1, 1, DRIVER, (), tuple(entries)), parts, 0.0, rows=rows)
    given_rows = input_rows(task, planned)
    np.testing.assert_array_equal(given_rows, np.array(want, np.float32))
    if len(want) == len(rows):
        assert np.shares_memory(given_rows, rows)


def test_the_rows_sent_on_are_the_engines_own_only_where_they_are_just_the_entries() -> None:
    computed = Computed(np.array([[1, 4], [1, 5]], np.float32), (None,))
    residency = _residency(1, held=6)
    residency.journal.trim(4)
    assert computed.rows is not None
    residency.journal.append(2, computed.rows)
    whole = Planned(Part(_entry(1, 4, 6), None), residency, 0)
    assert output_rows([whole], computed) is computed.rows
    longer = Planned(Part(_entry(1, 3, 6), None), residency, 0)
    np.testing.assert_array_equal(output_rows([longer], computed), [[1, 3], [1, 4], [1, 5]])
    held = Planned(Part(_entry(1, 0, 2), None), residency, None)
    np.testing.assert_array_equal(output_rows([held], computed), [[1, 0], [1, 1]])
    np.testing.assert_array_equal(output_rows([held], None), [[1, 0], [1, 1]])


def test_outputs_carry_a_token_only_where_one_was_asked_for() -> None:
    residency = _residency(1, held=4)
    logprobs = Logprobs(-0.5, ((77, -0.5),))
    residency.drawn[4] = Drawn(77, logprobs)
    planned = [
        Planned(Part(_entry(1, 2, 4, sample=sample), None), residency, None) for sample in (True, False)
    ]
    told = [(o.start, o.stop, o.token, o.logprobs) for o in outputs(planned)]
    assert told == [(2, 4, 77, logprobs), (2, 4, None, None)]
