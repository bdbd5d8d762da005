"""The texts that a vocabulary reads as control tokens, and finding them in what clients send."""

from __future__ import annotations

import re
from collections.abc import Iterable


class ControlTexts:
    """Finds control-token texts in linear time.

    A regular expression of all texts would try each of thousands (Gemma has 6,250) at every "<".
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(text for text in texts if text)
        self._lengths: dict[str, tuple[int, ...]] = {
            first: tuple(sorted({len(text) for text in self.texts if text[0] == first}, reverse=True))
            for first in {text[0] for text in self.texts}
        }
        self._first = re.compile(f"[{re.escape(''.join(sorted(self._lengths)))}]") if self.texts else None
        self._prefixes = frozenset(text[:end] for text in self.texts for end in range(1, len(text)))
        self._longest_prefix = max(map(len, self._prefixes), default=0)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Half-open spans of control texts in `text`: leftmost first, the longest at each place,
        without overlap."""
        spans: list[tuple[int, int]] = []
        if self._first is None:
            return spans
        covered = 0
        for match in self._first.finditer(text):
            start = match.start()
            if start < covered:
                continue
            for length in self._lengths[text[start]]:
                found = text[start : start + length]
                if found in self.texts:
                    covered = start + len(found)
                    spans.append((start, covered))
                    break
        return spans

    def unfinished(self, text: str) -> int:
        """How many characters at the end of `text` could begin a control text that whatever
        follows completes."""
        for length in range(min(self._longest_prefix, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0
