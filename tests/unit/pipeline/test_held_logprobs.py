"""Logprobs come when their token's text does: neither before it nor after."""

from __future__ import annotations

import pytest

from shoal.core.sequence import (
    FinishReason,
    GenerateRequest,
    Logprobs,
    SamplingParams,
    SessionId,
    TextDelta,
    TokenLogprobs,
)
from shoal.pipeline.session import Session

EOG = 999
CONTROL = 998


class PieceVocabulary:
    """Token n is the n-th piece; two more are control tokens."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    @property
    def eog_tokens(self) -> frozenset[int]:
        return frozenset({EOG})

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        if token in (EOG, CONTROL):
            return b"<|end|>" if special else b""
        return self._pieces[token]


def answer(
    pieces: list[bytes],
    *,
    tokens: list[int] | None = None,
    stop: tuple[str, ...] = (),
    max_tokens: int = 100,
    ignore_eog: bool = False,
    top_logprobs: int | None = 1,
) -> tuple[list[TextDelta], FinishReason | None]:
    """Deltas of one answer. Token n's own logprob is -n, and the likeliest is the end."""
    sampling = SamplingParams(top_logprobs=top_logprobs)
    session = Session(SessionId(1), GenerateRequest("r", (1,), max_tokens, sampling, stop, ignore_eog))
    vocabulary, deltas = PieceVocabulary(pieces), []
    for token in tokens or range(len(pieces)):
        logprobs = None if top_logprobs is None else Logprobs(-float(token), ((EOG, -0.5),))
        delta, reason = session.accept(token, vocabulary, logprobs)
        if delta is not None:
            deltas.append(delta)
        if reason is not None:
            return deltas, reason
    return deltas, None


def shown(deltas: list[TextDelta]) -> list[tuple[str, list[bytes]]]:
    return [(delta.text, [each.token.text for each in delta.logprobs]) for delta in deltas]


def all_logprobs(deltas: list[TextDelta]) -> list[TokenLogprobs]:
    return [each for delta in deltas for each in delta.logprobs]


def test_each_token_comes_with_its_text() -> None:
    deltas, _ = answer([b"a", b"bc"])
    assert shown(deltas) == [("a", [b"a"]), ("bc", [b"bc"])]
    [first, second] = all_logprobs(deltas)
    assert (first.token.logprob, first.text_offset) == (0.0, 0)
    assert (second.token.logprob, second.text_offset) == (-1.0, 1)
    assert (first.top[0].text, first.top[0].logprob, first.top[0].is_control) == (b"<|end|>", -0.5, True)


def test_nothing_comes_where_nothing_was_asked() -> None:
    deltas, _ = answer([b"a", b"b"], top_logprobs=None)
    assert deltas == [TextDelta("a"), TextDelta("b")]


def test_tokens_inside_a_character_wait_for_it() -> None:
    grin = "😀".encode()
    deltas, _ = answer([b"x", grin[:1], grin[1:3], grin[3:] + b"y", b"z"])
    assert shown(deltas) == [("x", [b"x"]), ("😀y", [grin[:1], grin[1:3], grin[3:] + b"y"]), ("z", [b"z"])]
    assert [each.text_offset for each in all_logprobs(deltas)] == [0, 1, 1, 1, 3]


def test_a_token_that_ends_inside_a_character_waits_for_all_of_its_text() -> None:
    grin = "😀".encode()
    deltas, _ = answer([b"a" + grin[:1], grin[1:] + b"b"])
    assert shown(deltas) == [("a", []), ("😀b", [b"a" + grin[:1], grin[1:] + b"b"])]


def test_tokens_that_may_begin_a_stop_text_wait_until_they_do_not() -> None:
    deltas, _ = answer([b"a", b"b", b"c", b"x"], stop=("bcd",))
    assert shown(deltas) == [("a", [b"a"]), ("bcx", [b"b", b"c", b"x"])]


def test_tokens_of_a_stop_text_never_come_but_the_one_that_it_cuts_does() -> None:
    deltas, reason = answer([b"a", b"xb", b"c", b"de"], stop=("bcd",))
    assert reason is FinishReason.STOP
    assert "".join(delta.text for delta in deltas) == "ax"
    assert [each.token.text for each in all_logprobs(deltas)] == [b"a", b"xb"]


def test_a_stop_text_at_the_start_leaves_nothing() -> None:
    assert answer([b"b", b"c"], stop=("bc",)) == ([], FinishReason.STOP)


@pytest.mark.parametrize("pieces", [[b"a", b"b"], [b"a", b"b", b"c"]])
def test_the_end_of_generation_releases_what_was_held_and_has_no_logprobs(pieces: list[bytes]) -> None:
    deltas, reason = answer(pieces, tokens=[*range(len(pieces)), EOG], stop=("bcd",))
    assert reason is FinishReason.STOP
    assert b"".join(each.token.text for each in all_logprobs(deltas)) == b"".join(pieces)
    assert "".join(delta.text for delta in deltas) == b"".join(pieces).decode()


def test_bytes_that_make_no_character_come_at_the_end_without_text() -> None:
    deltas, reason = answer([b"a", b"\xf0", b"\x9f"], max_tokens=3)
    assert reason is FinishReason.LENGTH
    assert shown(deltas) == [("a", [b"a"]), ("", [b"\xf0", b"\x9f"])]


def test_a_control_token_that_is_passed_over_comes_under_its_name() -> None:
    deltas, _ = answer([b"a", b"b"], tokens=[0, CONTROL, EOG, 1], ignore_eog=True)
    assert shown(deltas) == [("a", [b"a"]), ("b", [b"<|end|>", b"<|end|>", b"b"])]
    assert [each.token.is_control for each in all_logprobs(deltas)] == [False, True, True, False]


@pytest.mark.parametrize("stop", [(), ("model",), ("模",), ("r 模型",)])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_logprobs_change_no_text_and_keep_pace_with_it(size: int, stop: tuple[str, ...]) -> None:
    encoded = "Our 模型 — a model 😀 of fish".encode()
    pieces = [encoded[start : start + size] for start in range(0, len(encoded), size)]
    with_them, _ = answer(pieces, stop=stop)
    without, _ = answer(pieces, stop=stop, top_logprobs=None)
    assert [delta.text for delta in with_them if delta.text] == [delta.text for delta in without]
    text, seen = "", b""
    for delta in with_them:
        text += delta.text
        seen += b"".join(each.token.text for each in delta.logprobs)
        # What has been told of tokens never runs ahead of the text, nor lags a whole token behind.
        assert len(seen) - size < len(text.encode()) < len(seen) + size
