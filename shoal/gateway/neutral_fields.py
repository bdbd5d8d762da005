"""OpenAI's fields that Shoal does not act on yet, and the values that ask for nothing.

Clients send documented defaults explicitly, so these are let through; any other value is
refused by name, because an ignored wish is a wrong answer. Fields that only label a request
are accepted and not used.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.errors import BadRequest

LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")

# null is neutral everywhere and not listed.
_SHARED: Mapping[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
}

CHAT: Mapping[str, tuple[object, ...]] = {
    **_SHARED,
    "tools": ([],),
    # With no tools to call, these three change nothing.
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
}

COMPLETION: Mapping[str, tuple[object, ...]] = {
    **_SHARED,
    "echo": (False,),
    "suffix": ("",),
}


def drop_neutral_fields(
    body: Mapping[str, object], neutral: Mapping[str, tuple[object, ...]]
) -> dict[str, object]:
    """`body` without the fields of `neutral` and without labels.

    Raises BadRequest naming the first field that asks for something unsupported.
    """
    kept: dict[str, object] = {}
    for name, value in body.items():
        if name in neutral:
            _check_neutral(name, value, neutral[name])
        elif name not in LABELS:
            kept[name] = value
    return kept


def _check_neutral(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value is None or any(_is_same(value, neutral) for neutral in allowed):
        return
    # msgspec.json would also write the values, but repr of a list or dict here is ours and short.
    choices = [*(repr(neutral) for neutral in allowed), "null"]
    raise BadRequest(
        f"{name} is not supported by this server.",
        param=name,
        code="unsupported_parameter",
        next_step=f"Leave it out, or send its neutral value ({' or '.join(choices)}).",
    )


def _is_same(value: object, neutral: object) -> bool:
    # In Python True equals 1 and False equals 0; in JSON they do not.
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return value == neutral
