"""Which engine sequence a session sits on, and who else may."""

from __future__ import annotations

import pytest

from shoal.core.placement import DRIVER
from shoal.engine.interface import EngineLimits
from shoal.wire.messages import Live, Open
from shoal.worker.job import ClearSeq
from shoal.worker.residency import Residency
from shoal.worker.residency_table import ResidencyTable

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
    return ResidencyTable(LIMITS, journal_width=4)


def _opened(table: ResidencyTable, session: int, slot: int) -> Residency:
    residency = table.find_or_add(session, DRIVER)
    table.set_opened(residency, Open(session, slot, 1, 10, 0.0, 0, 1.0, 0.0, 0))
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
