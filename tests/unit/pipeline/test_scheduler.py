"""Which sessions go into the next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.sequence import GenerateRequest, SessionId
from shoal.pipeline.scheduler import InFlight, Scheduler, StepChoice
from shoal.pipeline.session import Phase, Session

NOTHING = InFlight(0, 0)


def _session(number: int, phase: Phase, *, prompt: int = 100) -> Session:
    session = Session(SessionId(number), GenerateRequest("r", tuple(range(prompt)), 50))
    session.phase = phase
    if phase is Phase.DECODE:
        session.sent = prompt - 1
    return session


def _decoding(*numbers: int) -> list[Session]:
    return [_session(number, Phase.DECODE) for number in numbers]


def _prompts(*numbers: int) -> list[Session]:
    return [_session(number, Phase.PREFILL) for number in numbers]


def _scheduler(num_stages: int = 2, *, max_steps: int | None = None, max_batch_tokens: int = 64) -> Scheduler:
    return Scheduler(
        num_stages=num_stages, chunk_tokens=32, max_batch_tokens=max_batch_tokens, max_steps=max_steps
    )


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20))
def test_those_who_decode_are_shared_out_over_the_stages(num_stages: int, num: int, batch: int) -> None:
    scheduler, sessions = _scheduler(num_stages, max_batch_tokens=batch), _decoding(*range(num))
    sizes, chosen = [], []
    while (choice := scheduler.choose(sessions, InFlight(len(sizes), 0))) is not None:
        assert choice.max_tokens == 1
        for session in sessions:
            if session.session in choice.sessions:
                session.in_flight[session.sent] = session.next_entry(1)
        sizes.append(len(choice.sessions))
        chosen += choice.sessions
    assert len(chosen) == len(set(chosen))
    assert len(sizes) <= num_stages
    share = -(-num // num_stages)
    assert max(sizes) == min(share, batch)
    assert len(chosen) == min(num, num_stages * min(share, batch))


def test_a_session_in_flight_is_not_chosen() -> None:
    sessions = _decoding(1, 2)
    sessions[0].next_entry(1)
    assert _scheduler(1).choose(sessions, NOTHING) == StepChoice((SessionId(2),), 1)


def test_as_many_decode_steps_as_stages_are_in_flight() -> None:
    scheduler = _scheduler(2)
    assert scheduler.choose(_decoding(1), InFlight(1, 9)) is not None
    assert scheduler.choose(_decoding(1), InFlight(2, 0)) is None


def _take_turn(scheduler: Scheduler, sessions: list[Session]) -> int:
    """Whose chunk is sent now; a prompt that is sent whole goes away."""
    choice = scheduler.choose(sessions, NOTHING)
    assert choice is not None
    (session,) = [s for s in sessions if s.session in choice.sessions]
    session.next_entry(choice.max_tokens)
    if session.phase is Phase.DECODE:
        sessions.remove(session)
    return session.session


def test_a_short_prompt_need_not_wait_for_a_round_of_long_ones() -> None:
    sessions = [*_prompts(1, 2, 3), _session(4, Phase.PREFILL, prompt=5)]
    assert _take_turn(_scheduler(), sessions) == 4


def test_a_long_prompt_has_its_turns_however_many_short_ones_come() -> None:
    scheduler, sessions = _scheduler(), _prompts(1)
    turns = []
    for number in range(2, 60):
        sessions.append(_session(number, Phase.PREFILL, prompt=5))
        turns.append(_take_turn(scheduler, sessions))
    num_chunks = turns.count(1)
    assert 1 not in [session.session for session in sessions]
    assert turns[: 2 * 2 * num_chunks].count(1) == num_chunks


def _chunks(num_tokens: int, num_stages: int) -> list[int]:
    scheduler = Scheduler(
        num_stages=num_stages, chunk_tokens=128, least_chunk_tokens=64, max_batch_tokens=128
    )
    (session,) = _prompts(1)
    session.request = replace(session.request, prompt_tokens=tuple(range(num_tokens)))
    session.tokens = list(session.request.prompt_tokens)
    lengths = []
    while session.phase is Phase.PREFILL:
        choice = scheduler.choose([session], NOTHING)
        assert choice is not None
        lengths.append(len(session.next_entry(choice.max_tokens).tokens))
    return lengths


@pytest.mark.parametrize(
    ("num_tokens", "num_stages", "lengths"),
    [
        (1024, 2, [128] * 8),
        (130, 2, [72, 58]),
        (256, 2, [64] * 4),
        (128, 2, [64, 64]),
        (127, 2, [127]),
        (384, 3, [64] * 6),
        (256, 1, [128, 128]),
        (130, 1, [72, 58]),
        (1, 2, [1]),
    ],
)
def test_a_prompt_is_cut_evenly_and_a_short_one_into_enough_chunks_for_all_stages(
    num_tokens: int, num_stages: int, lengths: list[int]
) -> None:
    assert _chunks(num_tokens, num_stages) == lengths


@given(st.integers(1, 3000), st.integers(1, 9))
def test_chunks_cover_the_prompt_and_none_is_too_long(num_tokens: int, num_stages: int) -> None:
    lengths = _chunks(num_tokens, num_stages)
    assert sum(lengths) == num_tokens
    assert max(lengths) <= 128
    assert all(length >= 64 for length in lengths[:-1])


def test_a_prompt_step_holds_one_prompt_and_a_decode_step_none() -> None:
    scheduler, sessions = _scheduler(), [*_prompts(1, 2), *_decoding(3, 4)]
    assert scheduler.choose(sessions, NOTHING) == StepChoice((SessionId(3),), 1)
    assert scheduler.choose(sessions, InFlight(2, 0)) == StepChoice((SessionId(1),), 32)


def test_while_nobody_decodes_one_chunk_more_than_stages_is_on_its_way() -> None:
    scheduler = _scheduler(3)
    assert scheduler.choose(_prompts(1), InFlight(0, 3)) is not None
    assert scheduler.choose(_prompts(1), InFlight(0, 4)) is None
    busy = _decoding(2)
    busy[0].next_entry(1)
    assert scheduler.choose([*_prompts(1), *busy], InFlight(1, 2)) is not None
    assert scheduler.choose([*_prompts(1), *busy], InFlight(1, 3)) is None


def test_a_given_limit_holds_for_each_kind() -> None:
    scheduler = _scheduler(3, max_steps=1)
    assert scheduler.choose(_decoding(1), InFlight(1, 0)) is None
    assert scheduler.choose(_prompts(1), InFlight(0, 1)) is None
    assert scheduler.choose(_prompts(1), InFlight(1, 0)) is not None


def test_without_anybody_there_is_no_step() -> None:
    assert _scheduler().choose([], NOTHING) is None


def test_where_few_steps_may_be_in_flight_those_who_decode_take_turns() -> None:
    scheduler, sessions, served = _scheduler(2, max_steps=1), _decoding(1, 2, 3, 4), []
    for _ in range(2):
        choice = scheduler.choose(sessions, NOTHING)
        assert choice is not None
        served += choice.sessions
    assert served == [1, 2, 3, 4]
