"""Token bytes into text that may be shown: whole characters, and never any part of a stop text.

Pure, one instance an answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Feed it bytes, take text.

    Characters whose bytes are not complete are held back, and so is text that may yet turn out
    to begin a stop text. stop: the texts that end the answer; the one that is complete first wins,
    the longest one where several are at once, so that the text is the same however it comes in pieces.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self.num_shown = 0
        self.stopped = False

    @property
    def num_decoded(self) -> int:
        """Whole characters so far, shown or held back."""
        return self.num_shown + len(self._pending)

    @property
    def is_inside_character(self) -> bool:
        """Whether the bytes so far end within a character."""
        return bool(self._decoder.getstate()[0])

    def feed(self, piece: bytes) -> str:
        """Add one token's bytes; returns the text that is now safe to show, often ''.

        Sets `stopped` when a stop text is complete: what came before it is returned, the rest is
        dropped, and nothing may be fed any more.
        """
        self._pending += self._decoder.decode(piece)
        found = self._first_stop()
        if found is not None:
            self.stopped = True
            return self._take(found)
        return self._take(len(self._pending) - self._held_back())

    def flush(self) -> str:
        """The rest, at the end of an answer that no stop text ended.

        Bytes of an incomplete character are dropped: half a character is not text.
        """
        return "" if self.stopped else self._take(len(self._pending))

    def _take(self, length: int) -> str:
        text, self._pending = self._pending[:length], self._pending[length:]
        self.num_shown += length
        return text

    def _first_stop(self) -> int | None:
        found = [(s + len(text), s) for text in self._stop if (s := self._pending.find(text)) >= 0]
        return min(found)[1] if found else None

    def _held_back(self) -> int:
        """Length of the longest end of the pending text that begins a stop text."""
        longest = max((len(text) - 1 for text in self._stop), default=0)
        for length in range(min(longest, len(self._pending)), 0, -1):
            end = self._pending[-length:]
            if any(text.startswith(end) for text in self._stop):
                return length
        return 0
