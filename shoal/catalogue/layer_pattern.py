"""The order of a model's layers, written shortly: "23x(kda, kda, kda, mla), mla"."""

from __future__ import annotations

import re
from typing import Final

MAX_LAYERS: Final = 10_000

_ITEM: Final = re.compile(r"\s*(?:(\d+)\s*x\s*)?(?:\(([^()]*)\)|([\w-]+))\s*(?:,|$)")


def expand(pattern: str) -> tuple[str, ...]:
    """One name a layer. Raises ValueError, saying where the pattern stops making sense."""
    names: list[str] = []
    position = 0
    while position < len(pattern):
        match = _ITEM.match(pattern, position)
        if match is None:
            raise ValueError(f"cannot be read from {pattern[position:].strip()!r} on")
        times, group, single = match.groups()
        inner = [single] if group is None else [name.strip() for name in group.split(",")]
        if not all(inner) or int(times or 1) * len(inner) + len(names) > MAX_LAYERS:
            raise ValueError(f"has an empty name, or more than {MAX_LAYERS} layers")
        names += inner * int(times or 1)
        position = match.end()
    if not names:
        raise ValueError("names no layer")
    return tuple(names)
