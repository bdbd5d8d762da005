"""What the pipeline must know of the model's tokens, and logprobs with the tokens' texts."""

from __future__ import annotations

from typing import Protocol

from shoal.core.sequence import Logprobs, TokenChance, TokenLogprobs


class Vocabulary(Protocol):
    """A model's tokens. The real one is pipeline/tokenizer.py."""

    @property
    def eog_tokens(self) -> frozenset[int]:
        """Tokens with which the model ends an answer."""
        ...

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that `token` stands for, not always whole characters. A control token gives
        none, or its name if `special`."""
        ...


def name_logprobs(token: int, logprobs: Logprobs, text_offset: int, vocabulary: Vocabulary) -> TokenLogprobs:
    """A drawn token's logprobs in texts instead of ids."""
    return TokenLogprobs(
        _chance(token, logprobs.drawn, vocabulary),
        tuple(_chance(other, logprob, vocabulary) for other, logprob in logprobs.top),
        text_offset,
    )


def _chance(token: int, logprob: float, vocabulary: Vocabulary) -> TokenChance:
    text = vocabulary.token_bytes(token)
    if text:
        return TokenChance(text, logprob)
    return TokenChance(vocabulary.token_bytes(token, special=True), logprob, is_control=True)
