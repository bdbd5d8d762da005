"""Which sessions a step takes in invariant mode: those on consecutive slots."""

from __future__ import annotations

import random

import pytest

from shoal.core.sequence import GenerateRequest, SamplingParams, SessionId
from shoal.pipeline.scheduler import InFlight, Scheduler, StepChoice
from shoal.pipeline.session import Phase, Session

IDLE = InFlight(0, 0)


def _decoding(session: int, slot: int) -> Session:
    request = GenerateRequest(f"r{session}", (1,), 100, SamplingParams())
    return Session(SessionId(session), request, phase=Phase.DECODE, slot=slot)


def _scheduler(num_stages: int, *, consecutive_slots: bool = True, max_batch_tokens: int = 128) -> Scheduler:
    return Scheduler(
        num_stages=num_stages,
        chunk_tokens=8,
        max_batch_tokens=max_batch_tokens,
        consecutive_slots=consecutive_slots,
    )


def _send(choice: StepChoice | None, sessions: list[Session]) -> list[int]:
    """The slots of a chosen step, now in flight."""
    assert choice is not None
    by_id = {session.session: session for session in sessions}
    for session in choice.sessions:
        by_id[session].next_entry(choice.max_tokens)
    return [by_id[session].assigned_slot for session in choice.sessions]


def _returned(session: Session) -> None:
    session.in_flight.clear()
    session.tokens.append(1)


def test_sessions_of_a_step_sit_on_consecutive_slots_in_ascending_order() -> None:
    sessions = [_decoding(1, 3), _decoding(2, 1), _decoding(3, 0), _decoding(4, 5), _decoding(5, 4)]
    scheduler = _scheduler(1)
    sent = [_send(scheduler.choose(sessions, IDLE), sessions) for _ in range(2)]
    assert sent == [[0, 1], [3, 4, 5]]


def test_stages_share_a_long_run_equally() -> None:
    sessions = [_decoding(slot + 1, slot) for slot in range(8)]
    scheduler = _scheduler(2)
    assert _send(scheduler.choose(sessions, IDLE), sessions) == [0, 1, 2, 3]
    assert _send(scheduler.choose(sessions, InFlight(1, 0)), sessions) == [4, 5, 6, 7]
    assert scheduler.choose(sessions, InFlight(2, 0)) is None


def test_a_step_has_no_more_tokens_than_a_batch() -> None:
    sessions = [_decoding(slot + 1, slot) for slot in range(8)]
    assert _send(_scheduler(1, max_batch_tokens=3).choose(sessions, IDLE), sessions) == [0, 1, 2]


@pytest.mark.parametrize("num_sessions", [2, 3, 4, 7, 8])
def test_sessions_that_join_in_the_middle_end_up_in_full_steps(num_sessions: int) -> None:
    rng = random.Random(num_sessions)
    for _ in range(30):
        sessions = [_decoding(slot + 1, slot) for slot in range(num_sessions)]
        present = [s for s in sessions if rng.random() < 0.5] or sessions
        scheduler, under_way, sizes = _scheduler(2), list[list[int]](), list[int]()
        for turn in range(60):
            if turn == 10:
                present = sessions
            choice = scheduler.choose(present, InFlight(len(under_way), 0))
            if choice is not None:
                under_way.append(_send(choice, sessions))
                sizes.append(len(under_way[-1]))
            else:
                for slot in under_way.pop(0):
                    _returned(sessions[slot])
        assert sum(sizes[-2:]) == num_sessions


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_no_session_waits_for_ever_whatever_slots_are_taken(num_stages: int) -> None:
    rng = random.Random(num_stages)
    for _ in range(100):
        slots = sorted(rng.sample(range(16), rng.randint(1, 12)))
        sessions = [_decoding(slot + 1, slot) for slot in slots]
        scheduler = _scheduler(num_stages)
        served: dict[int, int] = dict.fromkeys(slots, 0)
        under_way: list[list[int]] = []
        for _ in range(6 * len(slots)):
            choice = scheduler.choose(sessions, InFlight(len(under_way), 0))
            if choice is not None:
                step = _send(choice, sessions)
                assert step == list(range(step[0], step[0] + len(step)))
                under_way.append(step)
            else:
                for slot in under_way.pop(0):
                    served[slot] += 1
                    _returned(next(s for s in sessions if s.slot == slot))
        assert min(served.values()) >= 1, f"{slots}: {served}"


def test_default_mode_takes_sessions_in_the_order_they_were_admitted() -> None:
    sessions = [_decoding(1, 3), _decoding(2, 1), _decoding(3, 0)]
    scheduler = _scheduler(1, consecutive_slots=False)
    assert _send(scheduler.choose(sessions, IDLE), sessions) == [3, 1, 0]
