"""One request, as the driver sees it: what is sent next, what has come, and when it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.sequence import FinishReason, GenerateRequest, SamplingParams, SessionId, TextDelta
from shoal.pipeline.session import Phase, Session
from shoal.wire.messages import Open
from tests.support.digest_reference import NumberVocabulary

VOCABULARY = NumberVocabulary(frozenset({7}))


def _session(
    prompt: int = 5, max_tokens: int = 4, *, stop: tuple[str, ...] = (), ignore_eog: bool = False
) -> Session:
    request = GenerateRequest(
        "r",
        tuple(range(100, 100 + prompt)),
        max_tokens,
        SamplingParams(0.5, 4, 0.9, 0.1, 6),
        stop,
        ignore_eog,
    )
    return Session(SessionId(3), request, Phase.PREFILL)


@pytest.mark.parametrize(
    ("asked", "was_alone", "exact"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_what_a_stage_is_told_of_it(asked: bool, was_alone: bool, exact: bool) -> None:
    session = _session()
    session.slot = 2
    session.was_alone = was_alone
    assert session.open_message(exact_replay=asked) == Open(
        3, 2, 5, 9, SamplingParams(0.5, 4, 0.9, 0.1, 6), exact
    )


@given(st.integers(1, 60), st.integers(1, 20))
def test_entries_cover_the_prompt_once_and_only_the_last_is_sampled(prompt: int, chunk: int) -> None:
    session, entries = _session(prompt), []
    while session.phase is Phase.PREFILL:
        entries.append(session.next_entry(chunk))
    assert [token for entry in entries for token in entry.tokens] == list(session.request.prompt_tokens)
    assert [entry.sample for entry in entries] == [False] * (len(entries) - 1) + [True]
    assert [entry.start for entry in entries] == list(range(0, prompt, chunk))
    assert session.phase is Phase.DECODE
    assert session.lengths == [len(entry.tokens) for entry in entries]
    assert list(session.in_flight.values()) == entries


def test_after_a_token_the_next_entry_is_just_that_token() -> None:
    session = _session()
    session.next_entry(8)
    session.accept(42, VOCABULARY)
    entry = session.next_entry(8)
    assert (entry.start, entry.tokens, entry.sample) == (5, (42,), True)
    assert (session.num_generated, session.sent) == (1, 6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=10), st.data())
def test_a_replay_has_the_chunks_that_were_sent(lengths: list[int], draw: st.DataObject) -> None:
    session = _session(prompt=sum(lengths) + 5)
    for length in lengths:
        session.next_entry(length)
    start = draw.draw(st.integers(0, sum(lengths) - 1))
    limit = draw.draw(st.integers(1, 50))
    window = session.chunks_from(start, limit)
    stops = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    positions = [start + sum(window[: i + 1]) for i in range(len(window))]
    assert positions == [stop for stop in stops if stop > start][: len(window)]
    assert window
    assert sum(window) <= limit or len(window) == 1


def test_the_length_limit_shows_what_was_held_back_for_a_stop_text() -> None:
    session = _session(max_tokens=2, stop=("2 3",))
    assert session.accept(1, VOCABULARY) == (TextDelta("1 "), None)
    assert session.accept(2, VOCABULARY) == (TextDelta("2 "), FinishReason.LENGTH)


def test_a_stop_text_at_the_last_token_counts_as_stop() -> None:
    session = _session(max_tokens=2, stop=("1 2",))
    assert session.accept(1, VOCABULARY) == (None, None)
    assert session.accept(2, VOCABULARY) == (None, FinishReason.STOP)


def test_the_end_token_shows_what_was_held_back_and_is_no_text_itself() -> None:
    session = _session(stop=("1 2",))
    session.accept(1, VOCABULARY)
    assert session.accept(7, VOCABULARY) == (TextDelta("1 "), FinishReason.STOP)
    assert session.num_generated == 2


def test_an_end_token_that_is_ignored_is_text_like_any_other() -> None:
    assert _session(ignore_eog=True).accept(7, VOCABULARY) == (TextDelta("7 "), None)
