"""The fields of both bodies, their types and ranges: what pydantic can say of each alone.

Values are strict: "5", 5.0 and true are not the integer 5. null is the same as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.core.errors import BadRequest
from shoal.core.sequence import MAX_TOP_LOGPROBS

MAX_CHOICES = 128
"""OpenAI's limit on `n`; here of all choices of a request, over all its prompts."""

MAX_LEGACY_LOGPROBS = 5
"""OpenAI's limit."""

_Temperature = Annotated[float, Field(ge=0, le=2)]
_TopP = Annotated[float, Field(gt=0, le=1)]
_TopK = Annotated[int, Field(ge=0, lt=2**31)]
_MinP = Annotated[float, Field(ge=0, le=1)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_AtLeastOne = Annotated[int, Field(ge=1)]
_AtLeastZero = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """include_obfuscation: padding against listeners, which only its absence is offered of."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AnswerBody(_Strict):
    """Fields that both endpoints share. Those typed `object` are checked by a file of their own."""

    model: str | None = None
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    top_k: _TopK | None = None
    min_p: _MinP | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: object = None
    seed: _Seed | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: object = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None


class ChatBody(AnswerBody):
    """POST /v1/chat/completions."""

    messages: object
    max_tokens: _AtLeastOne | None = None
    max_completion_tokens: _AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class CompletionBody(AnswerBody):
    """POST /v1/completions."""

    prompt: object
    max_tokens: _AtLeastZero | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LEGACY_LOGPROBS)] | None = None
    best_of: _AtLeastOne | None = None


_Body = TypeVar("_Body", bound=AnswerBody)


def validate(body_class: type[_Body], fields: Mapping[str, object]) -> _Body:
    """The fields, each sound by itself. Raises BadRequest naming the first that is not."""
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
    return BadRequest(f"{param}: {first['msg']}{shown(first['input'])}.", param=param, code=code)


def shown(value: object) -> str:
    """` (got 5)` for a value that is short enough to be quoted in an error, else nothing."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return ""  # Python refuses to print integers of more than 4,300 digits
    if isinstance(value, str | int | float):
        quoted = repr(value)
        return f" (got {quoted})" if len(quoted) <= 60 else ""
    return ""
