"""One streamed completion, read off the wire event by event."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

READ_DEADLINE_S = 60.0


@dataclass
class StreamedAnswer:
    """What came over one stream, in order. choices: of each event that has any. A whole answer has
    one finish reason, and `[DONE]` behind it; a broken one ends with an error instead."""

    choices: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    num_comments: int = 0
    is_done: bool = False

    @property
    def text(self) -> str:
        return "".join(choice["text"] for choice in self.choices)

    @property
    def num_texts(self) -> int:
        return sum(bool(choice["text"]) for choice in self.choices)

    def take(self, line: str) -> None:
        """One line of the stream. Fails on what no event stream of ours holds."""
        assert not self.is_done or not line, f"behind the end of the stream: {line}"
        if line.startswith(":"):
            self.num_comments += 1
        elif line == "data: [DONE]":
            self.is_done = True
        elif line:
            assert line.startswith("data: "), line
            event = json.loads(line.removeprefix("data: "))
            assert not self.errors, f"behind an error: {line}"
            if "error" in event:
                self.errors.append(event["error"])
            else:
                self.choices += event["choices"]
                self.usage = event.get("usage") or self.usage


def stream_answer(
    url: str,
    body: Mapping[str, object],
    on_text: Callable[[int], None] = lambda num_texts: None,
    on_comment: Callable[[int], None] = lambda num_comments: None,
) -> StreamedAnswer:
    """Ask for a streamed completion and read it to its end.

    on_text, on_comment: called after each piece of text or comment with how many there were.
    """
    answer = StreamedAnswer()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{url}/v1/completions", json=streamed, timeout=READ_DEADLINE_S) as response:
        assert response.status_code == 200, response.read()
        num_texts = 0
        for line in response.iter_lines():
            answer.take(line)
            if answer.num_texts > num_texts:
                num_texts = answer.num_texts
                on_text(num_texts)
            if line.startswith(":"):
                on_comment(answer.num_comments)
    return answer
