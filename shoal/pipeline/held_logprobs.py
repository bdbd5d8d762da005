"""Logprobs wait until their token's text is shown. Pure, one instance an answer.

Text is held back inside a character and where it may begin a stop text; a token's logprobs come
with the text that it belongs to, neither earlier nor later.
"""

from __future__ import annotations

from collections import deque

from shoal.core.sequence import TokenLogprobs


class HeldLogprobs:
    """Tokens in order, each with the number of characters at which its text is complete."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, TokenLogprobs]] = deque()

    def add(self, logprobs: TokenLogprobs, *, complete_at: int) -> None:
        """The next token. complete_at: characters of the answer that must be shown for it."""
        self._held.append((complete_at, logprobs))

    def take(self, num_shown: int) -> tuple[TokenLogprobs, ...]:
        """Those whose text is complete now that `num_shown` characters have been shown."""
        taken: list[TokenLogprobs] = []
        while self._held and self._held[0][0] <= num_shown:
            taken.append(self._held.popleft()[1])
        return tuple(taken)

    def take_rest(self, *, before: int | None = None) -> tuple[TokenLogprobs, ...]:
        """The end of the answer: those that are left. before: only those that begin before this
        character, where a stop text begins; what lies in it is dropped."""
        rest = tuple(
            logprobs for _, logprobs in self._held if before is None or logprobs.text_offset < before
        )
        self._held.clear()
        return rest
