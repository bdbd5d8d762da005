"""Where a figure comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """The source of one value. is_unverified: recalled, assumed or from one weak page; what is
    computed from it must say so. note: how it was derived, or what it leaves out."""

    source: str | None
    is_unverified: bool = False
    note: str | None = None
