"""Which engine sequence a session sits on, and who else may."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.placement import DRIVER
from shoal.core.sequence import SamplingParams
from shoal.engine.interface import Drawn, EngineLimits
from shoal.wire.messages import Entry, Live, Open
from shoal.worker.job import ClearSeq, TrimSeq
from shoal.worker.residency import Residency
from shoal.worker.residency_table import CLOSED_REMEMBERED, ResidencyTable

LIMITS = EngineLimits(
    cells=100,
    max_sequences=3,
    max_batch_tokens=8,
    row_width_in=4,
    row_width_out=4,
    mixes_chunks=True,
    can_trim=True,
    state_bytes=0,
)


@pytest.fixture
def table() -> ResidencyTable:
    return ResidencyTable(LIMITS, journal_width=4, journal_bytes=1 << 20)


def _opened(table: ResidencyTable, session: int, slot: int) -> Residency:
    residency = table.find_or_add(session, DRIVER)
    table.set_opened(residency, Open(session, slot, 1, 10, SamplingParams()))
    return residency


def test_a_session_sits_on_the_slot_that_the_driver_gave_it(table: ResidencyTable) -> None:
    first, second = _opened(table, 1, slot=2), _opened(table, 2, slot=0)
    assert [table.take_seq(residency) for residency in (first, second, first)] == [True] * 3
    assert (first.seq, second.seq) == (2, 0)


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_that_the_engine_lacks_is_refused(table: ResidencyTable, slot: int) -> None:
    residency = _opened(table, 1, slot)
    assert not table.take_seq(residency)
    assert residency.seq is None


def test_a_slot_that_a_live_session_holds_is_refused(table: ResidencyTable) -> None:
    assert table.take_seq(_opened(table, 1, slot=1))
    late = _opened(table, 2, slot=1)
    assert not table.take_seq(late)
    table.close(2)  # must not free the slot of session 1
    assert not table.take_seq(_opened(table, 3, slot=1))
    assert table.take_ops() == ()


def test_a_closed_session_leaves_its_slot_clean(table: ResidencyTable) -> None:
    assert table.take_seq(_opened(table, 1, slot=1))
    assert table.take_seq(_opened(table, 2, slot=0))
    table.close(1)
    table.keep_only(Live(0, 2, ()))
    assert table.take_ops() == (ClearSeq(1), ClearSeq(0))
    assert table.take_seq(_opened(table, 3, slot=0))
    assert table.take_seq(_opened(table, 4, slot=1))


# ---------------------------------------------------------------- properties


@given(
    st.lists(st.tuples(st.sampled_from(["open", "close", "live", "lose"]), st.integers(0, 9)), max_size=40)
)
def test_no_two_sessions_ever_share_a_sequence_and_every_left_one_is_cleared(
    changes: list[tuple[str, int]],
) -> None:
    table = ResidencyTable(LIMITS, journal_width=4, journal_bytes=1 << 20)
    dirty: set[int] = set()
    for what, number in changes:
        residency = table.get(number)
        if what == "open" and not table.is_closed(number):
            residency = _opened(table, number, slot=number % 4)
            if table.take_seq(residency):
                assert residency.seq is not None
                dirty.add(residency.seq)
        elif what == "close":
            table.close(number)
        elif what == "live":
            table.keep_only(Live(1, number, ()))
        elif what == "lose" and residency is not None:
            table.lose(residency)
        held = [r.seq for r in table if r.seq is not None]
        assert len(held) == len(set(held))
        cleared = {op.seq for op in table.take_ops()}
        assert cleared <= dirty
        # A sequence that was used and now belongs to nobody must have been cleared.
        dirty -= cleared - set(held)
        assert dirty <= set(held)


def test_only_so_many_closed_sessions_are_remembered() -> None:
    table = ResidencyTable(LIMITS, journal_width=4, journal_bytes=1 << 20)
    for session in range(CLOSED_REMEMBERED + 10):
        table.close(session)
    assert not table.is_closed(9)
    assert table.is_closed(10)
    assert len(table._closed) == CLOSED_REMEMBERED


def test_a_lost_session_keeps_its_draws_and_its_sequence(table: ResidencyTable) -> None:
    residency = _opened(table, 1, slot=1)
    table.take_seq(residency)
    residency.advance((5, 6), np.zeros((2, 4), np.float32), Drawn(9, None))
    table.lose(residency)
    assert (residency.held, residency.journal.length, residency.drawn) == (0, 0, {2: Drawn(9, None)})
    assert (residency.seq, table.take_ops()) == (1, (ClearSeq(1),))


def test_a_higher_attempt_trims_the_engine_and_forgets_the_draws_behind(table: ResidencyTable) -> None:
    residency = _opened(table, 1, slot=1)
    table.take_seq(residency)
    residency.advance((5, 6), np.zeros((2, 4), np.float32), Drawn(9, None))
    residency.advance((7,), np.zeros((1, 4), np.float32), Drawn(8, None))
    assert table.take_attempt(residency, Entry(1, 1, 2, (1,)))
    assert (residency.tokens, residency.drawn, residency.attempt) == ([5, 6], {2: Drawn(9, None)}, 1)
    assert table.take_ops() == (TrimSeq(1, 2),)
    assert not table.take_attempt(residency, Entry(1, 0, 2, (1,)))
