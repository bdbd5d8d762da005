"""What clients may ask: the bodies of /v1/chat/completions and /v1/completions.

Turns a JSON object into an AnswerRequest or raises BadRequest naming the field. Values are
strict: "5", 5.0 and true are not the integer 5. Knows nothing about HTTP or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.core.errors import BadRequest
from shoal.core.sequence import SamplingParams
from shoal.gateway.chat_messages import read_messages
from shoal.gateway.neutral_fields import CHAT, COMPLETION, drop_neutral_fields
from shoal.gateway.service import ChatMessages

MAX_STOP_TEXTS = 4
"""OpenAI's limit."""

_Temperature = Annotated[float, Field(ge=0, le=2)]
_TopP = Annotated[float, Field(gt=0, le=1)]
_TopK = Annotated[int, Field(ge=0, lt=2**31)]
_MinP = Annotated[float, Field(ge=0, le=1)]
_Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_AtLeastOne = Annotated[int, Field(ge=1)]
_AtLeastZero = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    include_usage: bool | None = None


class _AnswerBody(_Strict):
    """Fields that both endpoints share; null is the same as absent."""

    model: str | None = None
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    top_k: _TopK | None = None
    min_p: _MinP | None = None
    seed: _Seed | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None


class ChatBody(_AnswerBody):
    """POST /v1/chat/completions."""

    messages: object
    max_tokens: _AtLeastOne | None = None
    max_completion_tokens: _AtLeastOne | None = None


class CompletionBody(_AnswerBody):
    """POST /v1/completions."""

    prompt: object
    max_tokens: _AtLeastZero | None = None


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A checked request, before its prompt is tokens.

    model: None where the client named none. prompt: messages, or the text to go on from.
    max_tokens: None where the client left it to the server. sampling.seed means nothing where
    `is_seeded` is False.
    """

    model: str | None
    prompt: ChatMessages | str
    max_tokens: int | None
    sampling: SamplingParams
    is_seeded: bool
    stop: tuple[str, ...]
    ignore_eog: bool
    stream: bool
    include_usage: bool

    @property
    def prompt_param(self) -> str:
        """The prompt's field, in the client's spelling."""
        return "prompt" if isinstance(self.prompt, str) else "messages"


def parse_chat(body: Mapping[str, object]) -> AnswerRequest:
    """Check the body of a chat request. Raises BadRequest."""
    fields = _validate(ChatBody, drop_neutral_fields(body, CHAT))
    return _answer_request(fields, read_messages(fields.messages), _chat_max_tokens(fields))


def parse_completion(body: Mapping[str, object]) -> AnswerRequest:
    """Check the body of a legacy completion request. Raises BadRequest."""
    fields = _validate(CompletionBody, drop_neutral_fields(body, COMPLETION))
    return _answer_request(fields, _read_prompt(fields.prompt), fields.max_tokens)


def _answer_request(fields: _AnswerBody, prompt: ChatMessages | str, max_tokens: int | None) -> AnswerRequest:
    stream = bool(fields.stream)
    if fields.stream_options is not None and not stream:
        raise BadRequest("stream_options needs stream to be true.", param="stream_options")
    return AnswerRequest(
        model=fields.model,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=_sampling(fields),
        is_seeded=fields.seed is not None,
        stop=_read_stop(fields.stop),
        ignore_eog=bool(fields.ignore_eos),
        stream=stream,
        include_usage=fields.stream_options is not None and bool(fields.stream_options.include_usage),
    )


def _sampling(fields: _AnswerBody) -> SamplingParams:
    neutral = SamplingParams()
    return SamplingParams(
        temperature=neutral.temperature if fields.temperature is None else float(fields.temperature),
        top_k=neutral.top_k if fields.top_k is None else fields.top_k,
        top_p=neutral.top_p if fields.top_p is None else float(fields.top_p),
        min_p=neutral.min_p if fields.min_p is None else float(fields.min_p),
        # A negative seed is an ordinary seed (-1 is not "random"): its 64 bits, read as unsigned.
        seed=0 if fields.seed is None else fields.seed % 2**64,
    )


def _chat_max_tokens(fields: ChatBody) -> int | None:
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadRequest(
            f"max_tokens is {old} but max_completion_tokens is {new}.",
            param="max_tokens",
            next_step="Send only max_completion_tokens.",
        )
    return old if new is None else new


def _read_prompt(raw: object) -> str:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], str):
        return raw[0]
    if isinstance(raw, list) and not raw:
        raise BadRequest("prompt is an empty list.", param="prompt", code="empty_array")
    raise BadRequest(
        "prompt must be one string, or a list with one string.",
        param="prompt",
        next_step="Send several prompts as several requests, and text rather than token ids.",
    )


def _read_stop(raw: object) -> tuple[str, ...]:
    if raw is None:
        return ()
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadRequest(
            f"stop must be a string or a list of up to {MAX_STOP_TEXTS} strings.",
            param="stop",
            code="invalid_type",
        )
    if len(texts) > MAX_STOP_TEXTS:
        raise BadRequest(f"stop has {len(texts)} texts; {MAX_STOP_TEXTS} is the most.", param="stop")
    if "" in texts:
        raise BadRequest("stop holds an empty text, which would end every answer at once.", param="stop")
    return tuple(texts)


_Body = TypeVar("_Body", bound=_AnswerBody)


def _validate(body_class: type[_Body], fields: Mapping[str, object]) -> _Body:
    try:
        return body_class.model_validate(fields)
    except ValidationError as error:
        raise _bad_field(error) from None


def _bad_field(error: ValidationError) -> BadRequest:
    # One fault at a time, the first: OpenAI's shape has one `param`.
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"])[:100]
    if first["type"] == "missing":
        return BadRequest(f"{param} is missing.", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return BadRequest(
            f"{param} is not a field that this server knows.",
            param=param,
            code="unknown_parameter",
            next_step="Leave it out.",
        )
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return BadRequest(f"{param}: {first['msg']}{_got(first['input'])}.", param=param, code=code)


def _got(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**40:
        return ""  # Python refuses to print integers of more than 4,300 digits
    if isinstance(value, str | int | float):
        shown = repr(value)
        return f" (got {shown})" if len(shown) <= 60 else ""
    return ""
