"""How an answer looks in OpenAI's two shapes, whole and in chunks.

Builds plain dictionaries; knows neither HTTP nor where the text comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal import __version__
from shoal.core.sequence import Finished

SYSTEM_FINGERPRINT = f"shoal-{__version__}"

Shape = dict[str, object]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One answer's identity and endpoint. created: unix seconds. include_usage: whether the
    stream ends with a usage chunk."""

    endpoint: Literal["chat", "completion"]
    answer_id: str
    created: int
    model: str
    include_usage: bool = False

    def whole(self, text: str, end: Finished) -> Shape:
        """The body of an answer that is not streamed."""
        choice: Shape = {"index": 0, "finish_reason": end.reason.value, "logprobs": None}
        if self.endpoint == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.endpoint == "chat" else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": usage(end)}

    def opening(self) -> Shape | None:
        """The chunk that comes before any text; legacy completions have none."""
        if self.endpoint == "completion":
            return None
        return self._chunk({"role": "assistant", "content": "", "refusal": None}, "", None)

    def piece(self, text: str) -> Shape:
        return self._chunk({"content": text}, text, None)

    def closing(self, end: Finished) -> list[Shape]:
        """The chunk with the finish reason, and the usage chunk where it was asked for."""
        chunks = [self._chunk({}, "", end.reason.value)]
        if self.include_usage:
            chunks.append({**self._head(self._chunk_kind), "choices": [], "usage": usage(end)})
        return chunks

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.endpoint == "chat" else "text_completion"

    def _chunk(self, delta: Shape, text: str, finish_reason: str | None) -> Shape:
        choice: Shape = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self.endpoint == "chat":
            choice["delta"] = delta
        else:
            choice["text"] = text
        chunk: Shape = {**self._head(self._chunk_kind), "choices": [choice]}
        if self.include_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, kind: str) -> Shape:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }


def usage(end: Finished) -> dict[str, int]:
    return {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }
