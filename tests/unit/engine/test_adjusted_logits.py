"""Bias and penalties: OpenAI's formula, bans that hold, and nothing done where nothing is asked."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import InvariantBroken
from shoal.core.sequence import BANNED, SamplingParams
from shoal.engine.adjusted_logits import adjusted
from shoal.engine.interface import Draw
from shoal.engine.sampling import draw_token

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 1.5, -3.0], dtype=np.float32)
BANS = ((0, BANNED), (4, BANNED))


def draw(*generated: int, position: int = 0, **params: object) -> Draw:
    return Draw(SamplingParams(**params), position, generated)  # type: ignore[arg-type]


def test_logits_without_a_wish_are_not_even_copied() -> None:
    assert adjusted(LOGITS, draw(0, 1)) is LOGITS
    assert adjusted(LOGITS, draw(presence_penalty=1.0)) is LOGITS


def test_presence_counts_once_and_frequency_each_time() -> None:
    changed = adjusted(LOGITS, draw(0, 4, 0, 0, presence_penalty=0.5, frequency_penalty=0.25))
    assert changed.tolist() == [2.0 - 0.5 - 0.75, 1.0, 0.0, -1.0, 1.5 - 0.5 - 0.25, -3.0]
    assert LOGITS[0] == 2.0


def test_negative_penalties_favour_what_was_said() -> None:
    assert draw_token(LOGITS, draw(5, 5, 5, temperature=0.0, frequency_penalty=-2.0)) == 5


def test_bias_is_added_and_comes_with_penalties() -> None:
    changed = adjusted(LOGITS, draw(3, logit_bias=((3, 7.5), (1, -1.0)), presence_penalty=2.0))
    assert changed.tolist() == [2.0, 0.0, 0.0, -1.0 + 7.5 - 2.0, 1.5, -3.0]


def test_a_banned_token_is_not_drawn_greedily() -> None:
    assert draw_token(LOGITS, draw(temperature=0.0, logit_bias=BANS)) == 1


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.01}, {"top_k": 5, "top_p": 0.99, "min_p": 1e-3}]
)
def test_a_banned_token_is_never_drawn_whatever_the_filters(filters: dict[str, float]) -> None:
    drawn = {
        draw_token(LOGITS, draw(position=p, temperature=2.0, logit_bias=BANS, **filters)) for p in range(300)
    }
    assert drawn
    assert not drawn & {0, 4}


def test_a_ban_holds_however_likely_the_token_is() -> None:
    logits = np.array([1000.0, 0.0, 0.5], dtype=np.float32)
    assert draw_token(logits, draw(temperature=0.0, logit_bias=((0, BANNED),))) == 2


def test_a_bias_of_a_hundred_leaves_no_other_token() -> None:
    wish = ((5, 100.0),)
    assert {draw_token(LOGITS, draw(position=p, temperature=2.0, logit_bias=wish)) for p in range(50)} == {5}


@pytest.mark.parametrize("bias", [((6, 1.0),), ((-1, 1.0),), tuple((t, BANNED) for t in range(6))])
def test_a_bias_that_the_door_should_have_refused_is_a_bug(bias: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InvariantBroken):
        draw_token(LOGITS, draw(logit_bias=bias))
