"""A journal that is full: the oldest session's is cut to its last rows, and who asks for more has the
session pulled from farther up."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.wire.messages import HandOverTo, Pull, Refill, State, Step
from tests.unit.worker.one_worker import AFTER, BEFORE, RETRY_S, OneWorker, entry, expected_rows, opened

CHUNK = 4
LIMIT_BYTES = 4 * 4 * CHUNK * 16  # four sessions' last rows, at 16 bytes: no more
HELD = 40


@pytest.fixture
def worker() -> OneWorker:
    """Holds two sessions, of which the older one had to give way."""
    worker = OneWorker(max_batch_tokens=CHUNK, journal_bytes=LIMIT_BYTES)
    grow(worker, 1, HELD)
    assert worker.core.num_cut_journals == 0
    grow(worker, 2, 28)
    worker.sent.clear()
    worker.engine.calls.clear()
    return worker


def grow(worker: OneWorker, session: int, stop: int, *, prompt: int = HELD) -> None:
    """Compute a session from its beginning."""
    for start in range(0, stop, CHUNK):
        worker.step(entry(session, start, start + CHUNK), opens=[opened(session, prompt=prompt)])
        worker.work()
        assert worker.core.journal_bytes <= LIMIT_BYTES


def ask(worker: OneWorker, start: int, stop: int = HELD) -> None:
    worker.receive(Pull(1, 1, 0, start, stop, AFTER, window=CHUNK))


def pulls(worker: OneWorker) -> list[tuple[str, int, int]]:
    return [(send.to, send.message.start, send.message.stop) for send in worker.take_sends(Pull)]


def test_the_oldest_session_gives_way_and_the_bound_holds(worker: OneWorker) -> None:
    first, second = (worker.core._sessions.get(session) for session in (1, 2))
    assert first is not None
    assert second is not None
    assert (first.journal.is_cut, second.journal.is_cut) == (True, False)
    assert (worker.core.num_cut_journals, worker.core.num_journal_cuts) == (1, 1)
    assert worker.core.num_long_pulls == 0


def test_an_entry_that_is_sent_again_is_answered_from_the_last_rows(worker: OneWorker) -> None:
    worker.step(entry(1, HELD - CHUNK, HELD))
    assert worker.work() == 0
    (send,) = worker.take_sends(Step)
    np.testing.assert_array_equal(send.rows, expected_rows(1, HELD - CHUNK, HELD))
    assert pulls(worker) == []


def test_a_successor_that_asks_farther_back_gets_it_all_from_a_longer_pull(worker: OneWorker) -> None:
    ask(worker, 0)
    assert worker.take_sends((Pull, Refill)) == [], "a batch may be under way: nothing is dropped under it"
    got = 0
    for _ in range(100):
        worker.work()
        for send in worker.take_sends((Pull, Refill)):
            if isinstance(send.message, Pull):
                assert send.to == BEFORE
                worker.refill(1, send.message.start, CHUNK)
                continue
            stop = send.message.start + sum(send.message.lengths)
            assert send.message.start == got
            np.testing.assert_array_equal(send.rows, expected_rows(1, got, stop))
            got = stop
            if got < HELD:
                ask(worker, got)
        if got == HELD:
            break
    assert got == HELD
    assert worker.core.num_long_pulls == 1
    assert worker.core.pulled_tokens == HELD
    assert worker.core.computed_tokens == HELD + 28 + HELD
    assert worker.core.journal_bytes <= LIMIT_BYTES


def test_it_does_not_run_away_from_a_successor_that_is_slow(worker: OneWorker) -> None:
    ask(worker, 0)
    num_pulled = 0
    for _ in range(20):
        worker.work()
        for _, start, _ in pulls(worker):
            num_pulled = start + CHUNK
            worker.refill(1, start, CHUNK)
    assert num_pulled == 2 * CHUNK, "as far as a cut journal surely reaches"
    ask(worker, CHUNK)
    assert pulls(worker) == [(BEFORE, 2 * CHUNK, HELD)]


def test_it_does_not_wait_for_ever_for_a_successor_that_is_gone(worker: OneWorker) -> None:
    ask(worker, 0)
    now_s = 0.0
    for _ in range(30):
        worker.work()
        for _, start, _ in pulls(worker):
            worker.refill(1, start, CHUNK)
        now_s += RETRY_S
        worker.tick_at(now_s)
    residency = worker.core._sessions.get(1)
    assert residency is not None
    assert residency.held == HELD


def test_an_entry_from_before_the_last_rows_is_computed_again_from_the_beginning(worker: OneWorker) -> None:
    worker.step(entry(1, 8, 12))
    worker.work()
    assert pulls(worker) == [(BEFORE, 0, 8)]
    worker.refill(1, 0, CHUNK, CHUNK)
    worker.work()
    (send,) = worker.take_sends(Step)
    np.testing.assert_array_equal(send.rows, expected_rows(1, 8, 12))
    assert worker.core.num_long_pulls == 1


def test_a_chunk_that_comes_again_when_the_answer_has_begun_is_not_computed_again() -> None:
    worker = OneWorker(max_batch_tokens=CHUNK, journal_bytes=LIMIT_BYTES)
    grow(worker, 1, HELD, prompt=HELD - 1)
    grow(worker, 2, 28)
    worker.sent.clear()
    worker.step(entry(1, 8, 12))
    worker.work()
    assert pulls(worker) == []
    assert worker.core.num_long_pulls == 0


def test_a_standby_that_is_fed_a_chunk_again_does_not_start_over(worker: OneWorker) -> None:
    worker.route = ()
    worker.step(entry(1, 8, 12))
    worker.work()
    assert pulls(worker) == []
    assert worker.core.num_long_pulls == 0


def test_what_a_cut_made_meanwhile_has_taken_is_not_sent() -> None:
    worker = OneWorker(max_batch_tokens=CHUNK, journal_bytes=LIMIT_BYTES)
    grow(worker, 1, HELD)
    worker.sent.clear()
    # One step: an old entry of session 1, which its journal answers, and what makes it give way.
    worker.step(entry(1, 0, 1), entry(2, 0, 3), opens=[opened(2)])
    worker.work()
    (send,) = worker.take_sends(Step)
    assert [(e.session, e.start) for e in send.message.entries] == [(2, 0)]
    np.testing.assert_array_equal(send.rows, expected_rows(2, 0, 3))


def test_a_session_with_a_cut_journal_is_handed_over_with_what_is_left_of_it(worker: OneWorker) -> None:
    worker.receive(HandOverTo(1, "s1"))
    worker.work()
    state, rows = next(
        (send.message, send.rows) for send in worker.take_sends(State) if send.message.session == 1
    )
    successor = OneWorker(max_batch_tokens=CHUNK, journal_bytes=LIMIT_BYTES)
    successor.receive(state, rows)
    successor.work()
    successor.sent.clear()
    successor.step(entry(1, HELD - CHUNK, HELD))
    assert successor.work() == 0
    (send,) = successor.take_sends(Step)
    np.testing.assert_array_equal(send.rows, expected_rows(1, HELD - CHUNK, HELD))
    ask(successor, 0)
    successor.work()
    assert pulls(successor) == [(BEFORE, 0, HELD)]
