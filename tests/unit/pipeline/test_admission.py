"""What admission gives away, and when it gives it again."""

from __future__ import annotations

import random

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
