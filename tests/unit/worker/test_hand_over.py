"""A polite leave: what arrives at the successor, and what happens when it does not."""

from __future__ import annotations

import msgspec
import pytest

from shoal.core.errors import EngineError
from shoal.core.placement import DRIVER
from shoal.core.sequence import SamplingParams
from shoal.engine.interface import Rows
from shoal.wire.messages import (
    Close,
    HandingOver,
    HandOverTo,
    Pull,
    Refill,
    Result,
    State,
    StateTaken,
    Step,
)
from shoal.worker.job import SavedState, StateJob
from shoal.worker.protocol import HAND_OVER_PATIENCE_S
from tests.unit.worker.one_worker import (
    BEFORE,
    ME,
    SEED,
    OneWorker,
    entry,
    expected_rows,
    opened,
    rows_of,
)

WITH_LOGPROBS = SamplingParams(seed=SEED, top_logprobs=2)


def _handed_over(leaving: OneWorker) -> list[tuple[State, Rows]]:
    """What a worker that leaves sends to its successor."""
    leaving.receive(HandOverTo(1, "s1"))
    leaving.work()
    states = []
    for send in leaving.take_sends(State):
        assert send.to == "s1"
        assert isinstance(send.message, State)
        assert send.rows is not None
        states.append((send.message, send.rows))
    return states


def _successor(place: str = "middle") -> OneWorker:
    worker = OneWorker(place)
    worker.take_peers(1, awaits_states=True)
    worker.sent.clear()
    return worker


def _held(worker: OneWorker) -> dict[int, int]:
    return {residency.session: residency.held for residency in worker.core._sessions}


def _same(one: Rows | None, other: Rows | None) -> bool:
    """Bit by bit: rows of digests may hold what is no number."""
    assert one is not None
    assert other is not None
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _feed(worker: OneWorker, start: int, stop: int) -> None:
    step = Step(1, 7, worker.sender, (), (entry(1, start, stop),), (opened(1),))
    worker.receive(step, rows_of(1, start, stop))


# ---------------------------------------------------------------- it works


def test_who_leaves_names_its_sessions_and_sends_each() -> None:
    leaving = OneWorker()
    for session in (1, 2):
        leaving.hold(session, 12)
    leaving.receive(opened(3))
    leaving.receive(HandOverTo(1, "s1"))
    assert [(s.to, s.message) for s in leaving.take_sends(HandingOver)] == [(DRIVER, HandingOver((1, 2), ME))]
    leaving.work()
    assert [state.session for state in leaving.take(State)] == [1, 2]


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_the_successor_holds_what_was_held_and_goes_on_from_there(place: str) -> None:
    leaving, successor = OneWorker(place), _successor(place)
    leaving.hold(1, 20)
    ((state, payload),) = _handed_over(leaving)
    successor.receive(state, payload)
    assert successor.work() == 0
    assert [(s.to, s.message) for s in successor.take_sends(StateTaken)] == [(DRIVER, StateTaken(1, ME))]
    theirs, mine = leaving.core._sessions.get(1), successor.core._sessions.get(1)
    assert theirs is not None
    assert mine is not None
    assert (mine.tokens, mine.attempt, mine.opened) == (theirs.tokens, theirs.attempt, theirs.opened)
    assert mine.journal.chunks_from(0, 99) == (8, 8, 4)
    assert _same(mine.journal.read(0, 20), theirs.journal.read(0, 20))
    for worker in (leaving, successor):
        worker.step(entry(1, 20, 22, sample=place == "last"))
        worker.work()
    (after,), (before,) = (worker.take_sends((Step, Result)) for worker in (successor, leaving))
    assert after.message == before.message
    if place != "last":
        assert _same(after.rows, before.rows)


def test_its_answers_to_successors_are_those_of_the_one_that_left() -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 20)
    ((state, payload),) = _handed_over(leaving)
    successor.receive(state, payload)
    successor.work()
    successor.sent.clear()
    successor.receive(Pull(1, 1, 0, 4, 20, "w2"))
    (refill,) = successor.take_sends(Refill)
    assert refill.message.lengths == (4, 8, 4)
    assert _same(refill.rows, expected_rows(1, 4, 20))


def test_draws_come_with_their_logprobs_and_are_not_drawn_again() -> None:
    leaving, successor = OneWorker("last"), _successor("last")
    leaving.step(entry(1, 0, 8, sample=True), opens=[opened(1, sampling=WITH_LOGPROBS)])
    leaving.work()
    (before,) = leaving.take(Result)
    ((state, payload),) = _handed_over(leaving)
    # As it comes off the wire.
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    successor.receive(decoded, payload)
    successor.work()
    successor.step(entry(1, 0, 8, sample=True))
    assert successor.work() == 0
    (after,) = successor.take(Result)
    assert after.outputs == before.outputs
    assert after.outputs[0].logprobs is not None


def test_what_was_fed_before_the_state_came_is_computed_behind_it() -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 12)
    ((state, payload),) = _handed_over(leaving)
    _feed(successor, 8, 12)
    _feed(successor, 12, 14)
    assert successor.work() == 0
    successor.receive(state, payload)
    assert successor.work() == 1
    assert _held(successor) == {1: 14}
    assert successor.take(Pull) == []


def test_streams_go_on_at_the_one_that_leaves_while_it_sends() -> None:
    leaving = OneWorker()
    leaving.hold(1, 8)
    leaving.receive(HandOverTo(1, "s1"))
    leaving.step(entry(1, 8, 10))
    leaving.work()
    assert [type(s.message) for s in leaving.take_sends((State, Step))] == [State, Step]


# ---------------------------------------------------------------- sessions that need none


def test_a_session_that_was_closed_meanwhile_is_confirmed_and_not_restored() -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 8)
    ((state, payload),) = _handed_over(leaving)
    successor.receive(Close((1,)))
    successor.receive(state, payload)
    successor.work()
    assert successor.take(StateTaken) == [StateTaken(1, ME)]
    assert (_held(successor), successor.engine.cells_used) == ({}, 0)


def test_a_session_that_ends_between_arriving_and_being_restored_is_confirmed() -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 8)
    ((state, payload),) = _handed_over(leaving)
    successor.receive(state, payload)
    successor.receive(Close((1,)))
    successor.work()
    assert successor.take(StateTaken) == [StateTaken(1, ME)]
    assert (_held(successor), successor.engine.cells_used) == ({}, 0)


def test_a_session_that_the_successor_holds_already_is_confirmed_and_left_as_it_is() -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 8)
    ((state, payload),) = _handed_over(leaving)
    successor.hold(1, 12)
    successor.receive(state, payload)
    successor.work()
    assert successor.take(StateTaken) == [StateTaken(1, ME)]
    assert _held(successor) == {1: 12}


def test_a_session_that_ends_before_its_turn_is_not_sent() -> None:
    leaving = OneWorker()
    leaving.hold(1, 8)
    leaving.receive(HandOverTo(1, "s1"))
    leaving.receive(Close((1,)))
    leaving.work()
    assert leaving.take(State) == []


# ---------------------------------------------------------------- what cannot be used is pulled


def _damaged(state: State, payload: Rows, how: str) -> tuple[State, Rows | None]:
    if how == "short":
        return state, payload[:-1]
    if how == "missing":
        return state, None
    if how == "lengths":
        return msgspec.structs.replace(state, lengths=(*state.lengths, 1)), payload
    return msgspec.structs.replace(state, state_bytes=state.state_bytes - 16), payload[4:]


def _pulls_everything(worker: OneWorker) -> bool:
    """Whether a session's next entry makes the worker pull from the start, when patience has ended."""
    _feed(worker, 12, 14)
    worker.work()
    worker.tick_at(HAND_OVER_PATIENCE_S)
    pulls = [(s.to, s.message.start, s.message.stop) for s in worker.take_sends(Pull)]
    worker.refill(1, 0, 8, 4)
    worker.work()
    return pulls == [(BEFORE, 0, 12)] and _held(worker) == {1: 14}


@pytest.mark.parametrize("how", ["short", "missing", "lengths", "state"])
def test_a_damaged_state_is_not_taken_and_the_session_is_pulled(how: str) -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 12)
    ((state, payload),) = _handed_over(leaving)
    successor.receive(*_damaged(state, payload, how))
    successor.work()
    assert successor.take(StateTaken) == []
    assert _pulls_everything(successor)


def _does_not_fit(seq: int, blob: bytes, length: int) -> None:
    raise EngineError("it does not fit")


def test_a_state_that_the_engine_does_not_take_is_forgotten_and_the_session_pulled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 12)
    ((state, payload),) = _handed_over(leaving)

    def half_restored(seq: int, blob: bytes, length: int) -> None:
        successor.engine._held[seq] = [b"x" * 32] * 3
        _does_not_fit(seq, blob, length)

    monkeypatch.setattr(successor.engine, "restore", half_restored)
    successor.receive(state, payload)
    successor.work()
    assert successor.take(StateTaken) == []
    assert successor.engine.cells_used == 0
    assert _pulls_everything(successor)


def test_who_asks_for_what_could_not_be_restored_makes_the_successor_ask_the_stage_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 12)
    ((state, payload),) = _handed_over(leaving)
    monkeypatch.setattr(successor.engine, "restore", _does_not_fit)
    successor.receive(state, payload)
    successor.work()
    successor.receive(Pull(1, 1, 0, 0, 12, "w2"))
    successor.tick_at(HAND_OVER_PATIENCE_S)
    assert [send.to for send in successor.take_sends(Pull)] == [BEFORE]


def test_a_session_that_cannot_be_saved_is_not_sent_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = OneWorker()
    leaving.hold(1, 8)
    leaving.hold(2, 8)
    save = leaving.engine.save

    def fails_once(seq: int) -> bytes:
        monkeypatch.setattr(leaving.engine, "save", save)
        raise EngineError("it cannot be saved")

    monkeypatch.setattr(leaving.engine, "save", fails_once)
    assert [state.session for state, _ in _handed_over(leaving)] == [2]
    assert _held(leaving) == {1: 8, 2: 8}


def test_a_restore_whose_session_was_closed_under_it_holds_nothing() -> None:
    leaving, successor = OneWorker(), _successor()
    leaving.hold(1, 8)
    ((state, payload),) = _handed_over(leaving)
    successor.receive(state, payload)
    job = successor.next_job()
    assert isinstance(job, StateJob)
    successor.receive(Close((1,)))
    successor.core.finish_state(job, SavedState(b""), successor.now_s)
    assert _held(successor) == {}


# ---------------------------------------------------------------- patience


def test_what_a_leaving_worker_will_send_is_not_pulled_before_patience_ends() -> None:
    successor = _successor()
    _feed(successor, 8, 12)
    successor.work()
    successor.tick_at(HAND_OVER_PATIENCE_S - 0.1)
    assert successor.take(Pull) == []
    successor.tick_at(HAND_OVER_PATIENCE_S)
    assert [(p.start, p.stop) for p in successor.take(Pull)] == [(0, 8)]


def test_of_a_session_that_it_holds_a_part_of_the_rest_is_pulled_at_once() -> None:
    successor = _successor()
    successor.hold(1, 4)
    _feed(successor, 8, 12)
    successor.work()
    assert [(p.start, p.stop) for p in successor.take(Pull)] == [(4, 8)]


def test_when_no_state_is_to_be_expected_any_more_it_pulls_at_once() -> None:
    successor = _successor()
    _feed(successor, 8, 12)
    successor.work()
    successor.now_s = 1.0
    successor.take_peers(2)  # the one that was leaving was lost
    assert [(p.start, p.stop) for p in successor.take(Pull)] == [(0, 8)]
