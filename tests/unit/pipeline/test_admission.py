"""What admission gives away, and when it gives it again."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.interface import EngineLimits
from shoal.pipeline.admission import Admission, Capacity


def test_the_lowest_free_slot_is_given() -> None:
    admission = Admission(Capacity(cells=100, sequences=4, batch_tokens=8))
    assert [admission.try_reserve(session, 10) for session in (1, 2, 3)] == [0, 1, 2]
    admission.release(1)
    admission.release(2)
    assert admission.try_reserve(4, 10) == 0
    assert admission.try_reserve(5, 10) == 1
    assert admission.try_reserve(6, 10) == 3


def test_nothing_is_kept_of_a_session_that_does_not_fit() -> None:
    admission = Admission(Capacity(cells=100, sequences=2, batch_tokens=8))
    assert admission.try_reserve(1, 60) == 0
    assert admission.try_reserve(2, 41) is None
    assert (admission.num_sequences, admission.cells_reserved) == (1, 60)
    assert admission.try_reserve(3, 40) == 1
    admission.release(1)
    assert admission.try_reserve(4, 60) == 0
    assert admission.try_reserve(5, 0) is None


def test_no_slot_is_ever_given_twice() -> None:
    rng = random.Random(1)
    admission = Admission(Capacity(cells=1000, sequences=5, batch_tokens=8))
    slots: dict[int, int] = {}
    for session in range(300):
        slot = admission.try_reserve(session, 1)
        if slot is not None:
            assert slot not in slots.values()
            slots[session] = slot
        if slots and rng.random() < 0.8:
            ended = rng.choice(list(slots))
            del slots[ended]
            admission.release(ended)
    assert slots


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 60)), max_size=40))
def test_what_is_reserved_never_exceeds_the_capacity(changes: list[tuple[bool, int, int]]) -> None:
    capacity = Capacity(cells=100, sequences=3, batch_tokens=8)
    admission, held = Admission(capacity), dict[int, int]()
    for reserves, session, tokens in changes:
        if reserves and session not in held:
            fits = len(held) < 3 and sum(held.values()) + tokens <= 100
            assert (admission.try_reserve(session, tokens) is not None) == fits
            if fits:
                held[session] = tokens
        elif not reserves:
            admission.release(session)
            held.pop(session, None)
        assert (admission.num_sequences, admission.cells_reserved) == (len(held), sum(held.values()))


def _limits(**changes: int) -> EngineLimits:
    sizes = {"cells": 1000, "max_sequences": 8, "max_batch_tokens": 64, "row_width_out": 16} | changes
    return EngineLimits(row_width_in=16, mixes_chunks=True, can_trim=True, state_bytes=0, **sizes)


def test_the_smallest_stage_sets_each_limit() -> None:
    stages = [_limits(cells=500), _limits(max_sequences=2), _limits(max_batch_tokens=32)]
    assert Capacity.smallest(stages, journal_bytes=1 << 30) == Capacity(500, 2, 32, row_bytes=64)


def test_the_widest_row_is_what_a_hop_may_have_to_carry() -> None:
    stages = [_limits(), _limits(row_width_out=64), _limits(row_width_out=8)]
    assert Capacity.smallest(stages, journal_bytes=1 << 30).row_bytes == 256


def test_as_many_sequences_come_in_as_have_room_in_a_journal_that_is_cut() -> None:
    # 64 bytes a token on one stage and 256 on the other, which is the wider one.
    stages = [_limits(), _limits(row_width_out=64)]
    least_bytes = 4 * 64 * 256  # four chunks
    capacity = Capacity.smallest(stages, journal_bytes=3 * least_bytes + 255)
    assert (capacity.sequences, capacity.cells) == (3, 1000)
