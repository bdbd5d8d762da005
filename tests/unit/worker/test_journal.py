"""The journal: what was appended is read back, chunk by chunk, whatever was trimmed between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.interface import Rows
from shoal.worker.journal import Journal

WIDTH = 3
CAPACITY = 300


def _rows(start: int, count: int, version: int = 0) -> Rows:
    return np.array([[start + i, version, 7] for i in range(count)], np.float32).reshape(count, WIDTH)


@given(
    st.lists(
        st.tuples(st.just("append"), st.integers(1, 90)) | st.tuples(st.just("trim"), st.integers(0, 300)),
        max_size=20,
    )
)
def test_it_holds_just_what_was_appended_and_not_trimmed(changes: list[tuple[str, int]]) -> None:
    journal = Journal(WIDTH, CAPACITY)
    rows, chunks = np.empty((0, WIDTH), np.float32), list[int]()
    for version, (what, number) in enumerate(changes):
        if what == "append" and len(rows) + number <= CAPACITY:
            added = _rows(len(rows), number, version)
            journal.append(number, added)
            added[:] = -1  # copied in: what the caller does with its array afterwards changes nothing
            rows = np.concatenate([rows, _rows(len(rows), number, version)])
            chunks.append(number)
        elif what == "trim":
            rows = rows[:number]
            while sum(chunks) > len(rows):
                excess = sum(chunks) - len(rows)
                chunks[-1] = max(0, chunks[-1] - excess)
                chunks = [chunk for chunk in chunks if chunk]
            journal.trim(number)
        assert journal.length == len(rows)
        np.testing.assert_array_equal(journal.read(0, len(rows)), rows)
        assert journal.chunks_from(0, CAPACITY) == tuple(chunks)
    assert journal.allocated_bytes <= CAPACITY * WIDTH * 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_a_window_begins_where_asked_and_ends_with_a_chunk(lengths: list[int], draw: st.DataObject) -> None:
    journal = Journal(0, 200)
    for length in lengths:
        journal.append(length, None)
    start = draw.draw(st.integers(0, sum(lengths) - 1))
    limit = draw.draw(st.integers(1, 40))
    window = journal.chunks_from(start, limit)
    stops = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    assert window
    assert start + sum(window) in stops
    assert sum(window) <= limit or len(window) == 1
    # No chunk more would have fitted.
    later = [stop for stop in stops if stop > start + sum(window)]
    assert not later or later[0] - start > limit


def test_it_refuses_what_goes_past_its_reservation() -> None:
    journal = Journal(WIDTH, 4)
    journal.append(3, _rows(0, 3))
    with pytest.raises(ValueError, match="journal of 4 tokens asked to hold 5"):
        journal.append(2, _rows(3, 2))
    assert journal.length == 3


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4)])
def test_it_refuses_to_read_what_it_does_not_hold(start: int, stop: int) -> None:
    journal = Journal(WIDTH, 10)
    journal.append(3, _rows(0, 3))
    with pytest.raises(ValueError, match=r"journal holds \[0, 3\)"):
        journal.read(start, stop)


def test_memory_grows_with_what_is_held_and_not_with_what_is_reserved() -> None:
    journal = Journal(WIDTH, 1_000_000)
    assert journal.allocated_bytes < 10_000
    journal.append(200, _rows(0, 200))
    assert 200 * WIDTH * 4 <= journal.allocated_bytes <= 400 * WIDTH * 4


def test_a_journal_without_rows_keeps_the_lengths_only() -> None:
    journal = Journal(0, 100)
    journal.append(3, None)
    journal.append(2, None)
    assert (journal.length, journal.allocated_bytes, journal.chunks_from(0, 100)) == (5, 0, (3, 2))
    assert journal.read(1, 4).shape == (3, 0)


@given(
    st.lists(
        st.tuples(st.just("append"), st.integers(1, 20))
        | st.tuples(st.just("trim"), st.integers(1, 300))
        | st.tuples(st.just("cut"), st.just(0)),
        max_size=40,
    )
)
def test_a_cut_journal_has_at_least_its_last_rows_in_bounded_memory(changes: list[tuple[str, int]]) -> None:
    journal, kept, chunk = Journal(WIDTH, CAPACITY), 50, 20
    length = 0
    for what, number in changes:
        if what == "append" and length + number <= CAPACITY:
            journal.append(number, _rows(length, number))
            length += number
        elif what == "trim":
            length = min(length, number)
            journal.trim(number)
        elif what == "cut":
            journal.cut(kept, chunk)
        assert journal.length == length
        assert journal.first <= length
        assert journal.first == 0 or journal.is_cut
        np.testing.assert_array_equal(
            journal.read(journal.first, length), _rows(journal.first, length - journal.first)
        )
        assert sum(journal.chunks_from(0, CAPACITY)) == length
    if journal.is_cut:
        assert journal.allocated_bytes == (kept + chunk) * WIDTH * 4


def test_appending_to_a_cut_journal_loses_no_row_too_soon() -> None:
    journal = Journal(WIDTH, CAPACITY)
    journal.append(100, _rows(0, 100))
    journal.cut(50, 20)
    for start in range(100, 300, 20):
        journal.append(20, _rows(start, 20))
        assert start + 20 - journal.first >= 50


def test_a_journal_that_is_forgotten_begins_anew_uncut() -> None:
    journal = Journal(WIDTH, CAPACITY)
    journal.append(100, _rows(0, 100))
    journal.cut(50, 20)
    journal.trim(0)
    assert (journal.first, journal.is_cut) == (0, False)
