"""Chat messages to prompt tokens, by the model file's own template.

Control tokens come only from the template: text in a message that spells one is tokenised as
plain text. Knows nothing of requests or HTTP; the messages are checked for shape at the door.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import jinja2

from shoal.core.errors import BadRequest, ModelFileError
from shoal.pipeline.template_sandbox import TemplateEnvironment, TemplateRefusal, TemplateTooCostly
from shoal.pipeline.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""For a file without a template whose vocabulary has `<|im_start|>`."""

PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""For a file without a template and without ChatML's tokens, such as a base model."""


class ChatTemplate:
    """One model's template, compiled. Usable from any thread."""

    def __init__(self, template: str | None, tokenizer: Tokenizer) -> None:
        """template: None takes ChatML if the vocabulary has its tokens, else `role: content` lines.
        Raises ModelFileError when the template is not valid jinja2."""
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment()
        self._lock = threading.Lock()  # the environment's budget is for one rendering at a time
        self.source = template if template is not None else _default_template(tokenizer)
        try:
            self._template = self._environment.from_string(self.source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelFileError(
                f"{tokenizer.path}: the chat template is not valid: {error}.",
                next_step="Use /v1/completions, or a model file whose template is sound.",
            ) from error

    def encode(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """The prompt's tokens, ending where the assistant's answer begins.

        Raises BadRequest when the template refuses the messages, fails on them, or costs too much.
        """
        literals = _Literals(self._tokenizer)
        text = self._render(literals.hide(list(messages)), literals.hide(list(tools)) if tools else None)
        return self._with_bos(literals.encode(text))

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> str:
        """The prompt as text, which cannot tell control tokens from texts that spell them."""
        return self._render(list(messages), list(tools) if tools else None)

    def _render(self, messages: list[Any], tools: list[Any] | None) -> str:
        variables = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
            "bos_token": self._tokenizer.bos_text,
            "eos_token": self._tokenizer.eos_text,
        }
        try:
            with self._lock:
                return self._environment.render_bounded(self._template, variables)
        except TemplateRefusal as refusal:
            raise BadRequest(
                f"The model's chat template refuses these messages: {refusal}", param="messages"
            ) from refusal
        except TemplateTooCostly as error:
            raise BadRequest(
                f"The model's chat template was stopped: {error}.",
                param="messages",
                next_step="Send shorter messages; if a short one fails too, the template is at fault.",
            ) from error
        # A template is a program of someone else: whatever it raises is an answer about these
        # messages, never a failure of this process.
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise self._failed(error) from error
        except (AttributeError, RecursionError, MemoryError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BadRequest:
        return BadRequest(
            f"The model's chat template fails on these messages: {type(error).__name__}: {error}.",
            param="messages",
            next_step="Check the roles and that every content is text.",
        )

    def _with_bos(self, tokens: list[int]) -> list[int]:
        """Some templates write the begin-of-sequence token and some leave it to the tokenizer."""
        bos = self._tokenizer.bos_token
        if bos is None or not self._tokenizer.adds_bos or tokens[:1] == [bos]:
            return tokens
        return [bos, *tokens]


class _Literals:
    """Texts that must not be read as control tokens, each hidden behind a marker while the
    template runs. Where none is found the rendered prompt is tokenised whole, as elsewhere."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        # Digits pass through a template's trimming, JSON and changes of case; a client cannot
        # guess these 128 bits.
        self._key = f"{secrets.randbits(128):039d}"

    def hide(self, value: Any) -> Any:
        """A copy of `value` (texts, lists and dicts, nested) with the literals replaced."""
        if isinstance(value, str):
            return self._hide_in(value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(element) for key, element in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(element) for element in value]
        return value

    def encode(self, text: str) -> list[int]:
        """Tokens of the rendered `text`, its markers replaced by what they hide."""
        if not self._texts:
            return self._tokenizer.encode(text, add_special=False, parse_special=True)
        tokens: list[int] = []
        for index, piece in enumerate(re.split(rf"{self._key}(\d{{8}})", text)):
            is_marker = index % 2 == 1
            literal = self._texts[int(piece)] if is_marker else piece
            tokens += self._tokenizer.encode(literal, add_special=False, parse_special=not is_marker)
        return tokens

    def _hide_in(self, text: str) -> str:
        pieces: list[str] = []
        begin = 0
        for start, end in self._spans(text):
            pieces += [text[begin:start], self._marker(text[start:end])]
            begin = end
        return "".join([*pieces, text[begin:]])

    def _spans(self, text: str) -> list[tuple[int, int]]:
        controls = self._tokenizer.controls
        spans = controls.find(text)
        # "<|im_" at the end of one text and "end|>" at the start of the next would join.
        unfinished = controls.unfinished(text)
        if unfinished and (not spans or spans[-1][1] <= len(text) - unfinished):
            spans.append((len(text) - unfinished, len(text)))
        return spans

    def _marker(self, literal: str) -> str:
        self._texts.append(literal)
        return f"{self._key}{len(self._texts) - 1:08d}"


def _default_template(tokenizer: Tokenizer) -> str:
    return CHATML if "<|im_start|>" in tokenizer.control_token_texts else PLAIN
