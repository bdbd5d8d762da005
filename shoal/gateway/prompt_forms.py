"""The `prompt` of a legacy completion: a text, token ids, or a list of such prompts."""

from __future__ import annotations

from shoal.core.errors import BadRequest

Prompt = str | tuple[int, ...]
"""A text, or its token ids."""


def read_prompts(raw: object) -> tuple[Prompt, ...]:
    """The prompts, at least one, in order. A list of integers is one prompt of token ids.

    Whether the ids are in the vocabulary is not known here. Raises BadRequest.
    """
    if isinstance(raw, str):
        return (raw,)
    if not isinstance(raw, list):
        raise _bad_prompt("prompt")
    if not raw:
        raise BadRequest("prompt is an empty list.", param="prompt", code="empty_array")
    if type(raw[0]) is int:
        return (_read_tokens(raw, "prompt"),)
    return tuple(_read_prompt(item, f"prompt[{index}]") for index, item in enumerate(raw))


def _read_prompt(raw: object, path: str) -> Prompt:
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise _bad_prompt(path)
    if not raw:
        raise BadRequest(f"{path} is an empty list.", param="prompt", code="empty_array")
    return _read_tokens(raw, path)


def _read_tokens(raw: list[object], path: str) -> tuple[int, ...]:
    tokens: list[int] = []
    for token in raw:
        if type(token) is not int:  # true and false are no tokens, though Python counts with them
            raise _bad_prompt(path)
        tokens.append(token)
    return tuple(tokens)


def _bad_prompt(path: str) -> BadRequest:
    forms = "a string or a list of token ids"
    if path == "prompt":
        forms += ", or a list of such prompts"
    return BadRequest(f"{path} must be {forms}.", param="prompt", code="invalid_type")
