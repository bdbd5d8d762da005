"""ControlTexts: finding what a vocabulary would read as control tokens."""

from __future__ import annotations

from shoal.pipeline.control_texts import ControlTexts

CONTROLS = ControlTexts(["<|a|>", "<|a|>b", "[X]", "<s>"])


def test_the_longest_text_at_each_place_is_found() -> None:
    assert CONTROLS.find("x<|a|>b<|a|>") == [(1, 7), (7, 12)]


def test_texts_that_almost_match_are_not_found() -> None:
    assert CONTROLS.find("<|a| <s [X <|b|> |a|>") == []


def test_neighbours_are_found_one_by_one() -> None:
    assert CONTROLS.find("<s><s>[X]") == [(0, 3), (3, 6), (6, 9)]


def test_an_unfinished_text_at_the_end_is_measured() -> None:
    assert CONTROLS.unfinished("hi <|a|") == 4
    assert CONTROLS.unfinished("hi <|a|>") == 5  # may become <|a|>b
    assert CONTROLS.unfinished("hi [X]") == 0
    assert CONTROLS.unfinished("") == 0


def test_a_vocabulary_without_controls_finds_nothing() -> None:
    assert ControlTexts([]).find("<s>") == []
    assert ControlTexts([""]).unfinished("<s>") == 0
