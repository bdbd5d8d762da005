"""The choices of one request: their seeds, and what has come of each.

A choice is an answer of its own, with a session of its own. Their numbers go over all prompts of
a request: with n choices each, those of the second prompt begin at n.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from shoal.core.sequence import ChoiceEvent, Finished, FinishReason, TokenLogprobs


def seed_of_choice(seed: int, choice: int) -> int:
    """The seed of one choice: the request's own for the first, else a hash of it and the number.

    So the choices differ, repeat as a set, and the first is what the request gets with n = 1.
    seed: 0 to 2**64 - 1, and so is what is returned.
    """
    if choice == 0:
        return seed
    keyed = seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(blake2b(keyed, digest_size=8, person=b"choice").digest(), "little")


@dataclass(slots=True)
class ChoiceSoFar:
    """What has come of one choice. completion_tokens: 0 until it has ended."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None
    completion_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class ChoicesSoFar:
    """All choices of one request. keep_text: False where what comes is passed on at once."""

    def __init__(self, num_choices: int, *, keep_text: bool) -> None:
        self.choices = [ChoiceSoFar() for _ in range(num_choices)]
        self._num_unfinished = num_choices
        self._keep_text = keep_text

    @property
    def are_complete(self) -> bool:
        return self._num_unfinished == 0

    @property
    def completion_tokens(self) -> int:
        return sum(choice.completion_tokens for choice in self.choices)

    def add(self, event: ChoiceEvent) -> None:
        """Take the next event in."""
        number, what = event
        choice = self.choices[number]
        if isinstance(what, Finished):
            choice.reason, choice.completion_tokens = what.reason, what.completion_tokens
            self._num_unfinished -= 1
        elif self._keep_text:
            choice.texts.append(what.text)
            choice.logprobs += what.logprobs
