"""Names as people type them: found whatever the case and the dashes, or the nearest one offered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from shoal.core.errors import ConfigError

T = TypeVar("T")


def folded(name: str) -> str:
    """`name` without what people vary: case, spaces, dashes, underscores, dots stay."""
    return name.lower().translate(str.maketrans("", "", " -_"))


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three known names that may have been meant."""
    by_folded = {folded(entry): entry for entry in known}
    typed = folded(name)
    starts = [entry for key, entry in by_folded.items() if typed and (key.startswith(typed) or typed in key)]
    close = [by_folded[key] for key in get_close_matches(typed, by_folded, n=3, cutoff=0.5)]
    return tuple(dict.fromkeys([*close, *starts]))[:3]


def nearest_text(name: str, known: Collection[str]) -> str:
    """ " (did you mean memory?)", or nothing."""
    found = nearest(name, known)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def find(name: str, known: Mapping[str, T], *, kind: str) -> T:
    """The entry of `name`. Raises ConfigError with the nearest names ("No machine is known as ...")."""
    by_folded = {folded(key): value for key, value in known.items()}
    found = by_folded.get(folded(name))
    if found is not None:
        return found
    near = nearest(name, known)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(sorted(known))}."
    raise ConfigError(f"No {kind} is known as {name!r}.", next_step=hint)
