"""How an answer looks in OpenAI's two shapes, whole and in chunks.

Builds plain dictionaries; knows neither HTTP nor where the text comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.sequence import Finished, TextDelta, TokenLogprobs
from shoal.gateway.choices import ChoiceSoFar, ChoicesSoFar
from shoal.gateway.logprob_format import chat_logprobs, legacy_logprobs
from shoal.gateway.openai_api import EndpointKind

Shape = dict[str, object]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One answer's identity and endpoint. created: unix seconds. fingerprint: of what computes it.
    prompt_tokens: of all prompts,
    each counted once however many choices it has. num_choices: over all prompts. has_logprobs:
    whether they were asked for. include_usage: whether the stream ends with a usage chunk."""

    endpoint: EndpointKind
    answer_id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    num_choices: int = 1
    has_logprobs: bool = False
    include_usage: bool = False

    def whole(self, answer: ChoicesSoFar) -> Shape:
        """The body of an answer that is not streamed."""
        kind = "chat.completion" if self.endpoint == "chat" else "text_completion"
        choices = [self._whole_choice(number, choice) for number, choice in enumerate(answer.choices)]
        return {**self._head(kind), "choices": choices, "usage": self._usage(answer)}

    def openings(self) -> list[Shape]:
        """The chunks that come before any text, one a choice; legacy completions have none."""
        if self.endpoint == "completion":
            return []
        delta: Shape = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(number, delta, "") for number in range(self.num_choices)]

    def piece(self, choice: int, delta: TextDelta) -> Shape:
        """The chunk for a piece of text."""
        return self._chunk(choice, {"content": delta.text}, delta.text, logprobs=delta.logprobs)

    def closing(self, choice: int, end: Finished) -> Shape:
        """The chunk with a choice's finish reason."""
        return self._chunk(choice, {}, "", finish_reason=end.reason.value)

    def farewell(self, answer: ChoicesSoFar) -> list[Shape]:
        """The usage chunk, where it was asked for, after the last choice has ended."""
        if not self.include_usage:
            return []
        return [{**self._head(self._chunk_kind), "choices": [], "usage": self._usage(answer)}]

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.endpoint == "chat" else "text_completion"

    def _whole_choice(self, number: int, choice: ChoiceSoFar) -> Shape:
        assert choice.reason is not None, "an answer is whole when every choice has ended"
        logprobs = self._logprobs(choice.logprobs) if self.has_logprobs else None
        shape: Shape = {"index": number, "finish_reason": choice.reason.value, "logprobs": logprobs}
        if self.endpoint == "chat":
            shape["message"] = {"role": "assistant", "content": choice.text, "refusal": None}
        else:
            shape["text"] = choice.text
        return shape

    def _chunk(
        self,
        choice: int,
        delta: Shape,
        text: str,
        *,
        logprobs: Sequence[TokenLogprobs] = (),
        finish_reason: str | None = None,
    ) -> Shape:
        told = self._logprobs(logprobs) if logprobs else None
        shape: Shape = {"index": choice, "finish_reason": finish_reason, "logprobs": told}
        if self.endpoint == "chat":
            shape["delta"] = delta
        else:
            shape["text"] = text
        chunk: Shape = {**self._head(self._chunk_kind), "choices": [shape]}
        if self.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Shape:
        return chat_logprobs(tokens) if self.endpoint == "chat" else legacy_logprobs(tokens)

    def _usage(self, answer: ChoicesSoFar) -> Shape:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "total_tokens": self.prompt_tokens + answer.completion_tokens,
        }

    def _head(self, kind: str) -> Shape:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }
