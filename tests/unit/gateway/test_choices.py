"""Choices: seeds that differ and repeat, and what has come of each."""

from __future__ import annotations

from shoal.core.sequence import Finished, FinishReason, TextDelta
from shoal.gateway.choices import ChoicesSoFar, seed_of_choice


def test_seeds_differ_between_choices_and_between_requests_and_repeat() -> None:
    sets = [[seed_of_choice(seed, choice) for choice in range(128)] for seed in (0, 1, 42, 2**64 - 1)]
    everything = [seed for one in sets for seed in one]
    assert len(set(everything)) == len(everything)
    assert all(0 <= seed < 2**64 for seed in everything)
    assert sets[2] == [seed_of_choice(42, choice) for choice in range(128)]


def test_the_first_choice_has_the_request_s_own_seed() -> None:
    assert seed_of_choice(42, 0) == 42


def test_the_second_choice_s_seed_is_pinned() -> None:
    # A change would change every seeded answer with n > 1.
    assert seed_of_choice(42, 1) == 1274913726319268062


def test_an_answer_is_complete_when_its_last_choice_is() -> None:
    answer = ChoicesSoFar(2, keep_text=True)
    answer.add((1, TextDelta("b")))
    answer.add((1, Finished(FinishReason.STOP, 5, 3)))
    assert not answer.are_complete
    answer.add((0, TextDelta("a")))
    answer.add((0, TextDelta("c")))
    answer.add((0, Finished(FinishReason.LENGTH, 5, 4)))
    assert answer.are_complete
    assert [choice.text for choice in answer.choices] == ["ac", "b"]
    assert [choice.reason for choice in answer.choices] == [FinishReason.LENGTH, FinishReason.STOP]
    assert answer.completion_tokens == 7


def test_text_that_is_passed_on_is_not_kept() -> None:
    answer = ChoicesSoFar(1, keep_text=False)
    answer.add((0, TextDelta("a")))
    assert answer.choices[0].text == ""
