"""Token bytes into text: whole characters, no part of a stop text, whatever the pieces are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.pipeline.text_stream import TextStream

SMALL = st.text("ab", max_size=24)  # so that stop texts occur, overlap and begin often
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def _pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(bounds)]


def _deltas(stream: TextStream, pieces: list[bytes]) -> list[str]:
    """What is shown piece by piece, until a stop text ends it."""
    deltas = []
    for piece in pieces:
        deltas.append(stream.feed(piece))
        if stream.stopped:
            return deltas
    return [*deltas, stream.flush()]


def _until_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The whole answer, by the definition: read on until a stop text is complete, and drop it."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - len(max(ended, key=len))], True
    return text, False


@given(SMALL, STOPS, st.lists(st.integers(0, 100), max_size=8))
@example("aab", ["b", "aab"], [])
@example("abb", ["abb", "b"], [1])
@example("aba", ["aba", "b"], [])
def test_the_deltas_are_the_text_up_to_the_first_stop_however_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream = TextStream(stops)
    deltas = _deltas(stream, _pieces(text.encode(), cuts))
    assert ("".join(deltas), stream.stopped) == _until_first_stop(text, stops)


@given(SMALL, STOPS, st.lists(st.integers(0, 100), max_size=8))
def test_nothing_is_shown_that_may_yet_be_part_of_a_stop_text(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream, fed, shown = TextStream(stops), "", ""
    for piece in _pieces(text.encode(), cuts):
        shown += stream.feed(piece)
        if stream.stopped:
            return
        fed += piece.decode()
        # The longest end of what came that begins a stop text is held back, and no more than that.
        held = max((n for stop in stops for n in range(len(stop)) if fed.endswith(stop[:n])), default=0)
        assert shown == fed[: len(fed) - held]


@given(st.text(), st.lists(st.integers(0, 1000), max_size=20))
@example("👩‍👩‍👧 漢字 é", list(range(40)))
def test_valid_text_split_anywhere_is_shown_whole_and_never_as_a_replacement(
    text: str, cuts: list[int]
) -> None:
    text = text.replace("�", "")
    deltas = _deltas(TextStream(), _pieces(text.encode(), cuts))
    assert "".join(deltas) == text
    assert not any("�" in delta for delta in deltas)


def test_emoji_and_cjk_that_come_byte_by_byte_appear_when_they_are_whole() -> None:
    stream = TextStream()
    deltas = [stream.feed(bytes([byte])) for byte in "🐟漢é!".encode()]
    assert deltas == ["", "", "", "🐟", "", "", "漢", "", "é", "!"]


def test_half_a_character_at_the_end_is_dropped() -> None:
    stream = TextStream()
    assert stream.feed("ok 🐟".encode()[:-1]) == "ok "
    assert stream.flush() == ""


def test_bytes_that_are_no_text_are_shown_as_such_and_what_follows_is_kept() -> None:
    stream = TextStream()
    assert stream.feed(b"a\xffb") == "a�b"


def test_a_stop_of_two_words_spread_over_tokens_leaks_nothing() -> None:
    stream = TextStream(["the end"])
    assert [stream.feed(piece) for piece in (b"so ", b"th", b"e", b" e", b"nd", b"!")[:5]] == ["so "] + [
        ""
    ] * 4
    assert stream.stopped
    assert stream.flush() == ""


def test_what_only_looked_like_a_stop_is_shown_after_all() -> None:
    stream = TextStream(["the end"])
    assert [stream.feed(piece) for piece in (b"the e", b"ve", b" the")] == ["", "the eve", " "]
    assert (stream.flush(), stream.stopped) == ("the", False)


@pytest.mark.parametrize("stops", [[], ["abc", "b"], ["b", "abc"]])
def test_overlapping_stops_give_the_same_text_in_one_piece_and_in_many(stops: list[str]) -> None:
    whole, split = TextStream(stops), TextStream(stops)
    assert "".join(_deltas(whole, [b"xabcd"])) == "".join(_deltas(split, [b"x", b"a", b"b", b"c", b"d"]))


def test_a_stop_that_is_longer_than_the_answer_so_far_may_come_a_byte_at_a_time() -> None:
    stop = "0123456789" * 1000
    stream = TextStream([stop])
    assert "".join(_deltas(stream, [bytes([b]) for b in b"x" + stop[:-1].encode()])) == "x" + stop[:-1]
    assert not stream.stopped
    stream = TextStream([stop])
    assert _deltas(stream, [b"x", stop.encode(), b"y"]) == ["x", ""]
    assert stream.stopped


def test_a_stop_may_hold_characters_of_many_bytes() -> None:
    stream = TextStream(["終わり"])
    assert "".join(_deltas(stream, [bytes([b]) for b in "よ終わ終わり。".encode()])) == "よ終わ"
    assert stream.stopped


def test_the_counts_say_what_is_shown_and_what_is_decoded() -> None:
    stream = TextStream(["bc"])
    stream.feed(b"ab")
    assert (stream.num_shown, stream.num_decoded, stream.is_inside_character) == (1, 2, False)
    stream.feed("🐟".encode()[:2])
    assert (stream.num_shown, stream.num_decoded, stream.is_inside_character) == (1, 2, True)
