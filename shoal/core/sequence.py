"""One request's tokens and sampling parameters, and what comes back for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

SessionId = NewType("SessionId", int)
"""A sequence's residency on a pipeline. Never reused while a head lives."""


class FinishReason(Enum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


MAX_TOP_LOGPROBS = 20
"""OpenAI's limit."""

BANNED = -100.0
"""A token with this bias is never drawn, however likely the model holds it."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the last stage picks a token. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 and
    `min_p` 0 switch their filter off. `seed`: 64 bits; the same seed, logits and position give
    the same draw.

    presence_penalty, frequency_penalty: taken off the logit of a token that the answer (not the
    prompt) has, once and once for each time. logit_bias: (token, what is added to its logit), each
    token once. top_logprobs: how many of the likeliest tokens to tell with each drawn one; None
    tells nothing, 0 the drawn one's own logprob.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether a draw depends on the answer so far."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What the gateway hands to the pipeline. Checked at the door already.

    max_tokens: tokens to generate at most, at least 1. stop: texts that end the answer and are
    not part of it. ignore_eog: go on past the model's end-of-generation tokens.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    ignore_eog: bool = False


@dataclass(frozen=True, slots=True)
class Logprobs:
    """What the model itself held of a drawn token and of the likeliest ones: natural logarithms of
    their probabilities, before bias, penalties, temperature and filters. Always finite.

    top: (token, logprob), the likeliest first, the lower id on a tie.
    """

    drawn: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenChance:
    """A token with the logarithm of its probability.

    text: its bytes, not always whole characters. is_control: it adds no text to an answer, and
    `text` is only its name.
    """

    text: bytes
    logprob: float
    is_control: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token of the answer. text_offset: character of the answer that it begins at, or begins
    inside of. top: the likeliest tokens at this place, best first."""

    token: TokenChance
    top: tuple[TokenChance, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer: whole characters only.

    logprobs: where asked for, the tokens whose text is now complete; each token comes once, in
    order, and tokens that ended the answer (end of generation, stop text) never. `text` is empty
    only where such a piece brings logprobs: of bytes at the end that make no character, and of
    tokens without text.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer, after the last delta."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int


GenerateEvent = TextDelta | Finished

ChoiceEvent = tuple[int, GenerateEvent]
"""An event and the number of the choice that it belongs to, where one request asks for several."""
