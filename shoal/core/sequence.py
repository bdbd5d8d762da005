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


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the last stage picks a token. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 and
    `min_p` 0 switch their filter off. `seed`: 64 bits; the same seed, logits and position give
    the same draw."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


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
class TextDelta:
    """The next piece of the answer. Whole characters only; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer, after the last delta."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int


GenerateEvent = TextDelta | Finished
