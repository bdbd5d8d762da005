"""Prompts: a text, token ids, or several of either."""

from __future__ import annotations

import pytest

from shoal.core.errors import BadRequest
from shoal.gateway.prompt_forms import Prompt, read_prompts


@pytest.mark.parametrize(
    ("raw", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a"], ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([-1], ((-1,),)),
        ([[1, 2]], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_each_form_is_read(raw: object, prompts: tuple[Prompt, ...]) -> None:
    assert read_prompts(raw) == prompts


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (None, "prompt"),
        (5, "prompt"),
        (True, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([1, "a"], "prompt"),
        ([1, 2.0], "prompt"),
        ([1, True], "prompt"),
        ([True], "prompt[0]"),
        ([1.5], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        (["a", None], "prompt[1]"),
        (["a", []], "prompt[1]"),
        ([["a"]], "prompt[0]"),
        ([[1], [[2]]], "prompt[1]"),
    ],
)
def test_anything_else_is_refused_with_its_place(raw: object, place: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_prompts(raw)
    assert caught.value.param == "prompt"
    assert caught.value.message.startswith(f"{place} ")
