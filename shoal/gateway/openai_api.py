"""What clients may ask: the bodies of /v1/chat/completions and /v1/completions.

Turns a JSON object into an AnswerRequest or raises BadRequest naming the field. Knows nothing
about HTTP, and of tokens only their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.core.errors import BadRequest
from shoal.core.sequence import SamplingParams
from shoal.gateway.body_fields import MAX_CHOICES, AnswerBody, ChatBody, CompletionBody, validate
from shoal.gateway.chat_messages import read_messages
from shoal.gateway.logit_bias import read_logit_bias
from shoal.gateway.neutral_fields import CHAT, COMPLETION, drop_neutral_fields
from shoal.gateway.prompt_forms import Prompt, read_prompts
from shoal.gateway.service import ChatMessages

EndpointKind = Literal["chat", "completion"]

MAX_STOP_TEXTS = 4
"""OpenAI's limit."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A checked request, before its prompts are tokens.

    model: None where the client named none. prompts: messages of one chat, or what to go on from,
    once or several times. num_choices: answers to each prompt. max_tokens: of each answer; None
    where the client left it to the server. sampling.seed means nothing where `is_seeded` is False.
    """

    endpoint: EndpointKind
    model: str | None
    prompts: tuple[ChatMessages | Prompt, ...]
    num_choices: int
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
        return "messages" if self.endpoint == "chat" else "prompt"


def parse_chat(body: Mapping[str, object]) -> AnswerRequest:
    """Check the body of a chat request. Raises BadRequest."""
    fields = validate(ChatBody, drop_neutral_fields(body, CHAT))
    messages = read_messages(fields.messages)
    return _answer_request("chat", fields, (messages,), _chat_max_tokens(fields), _chat_logprobs(fields))


def parse_completion(body: Mapping[str, object]) -> AnswerRequest:
    """Check the body of a legacy completion request. Raises BadRequest."""
    fields = validate(CompletionBody, drop_neutral_fields(body, COMPLETION))
    prompts = read_prompts(fields.prompt)
    num_choices = fields.n or 1
    if len(prompts) * num_choices > MAX_CHOICES:
        raise BadRequest(
            f"{len(prompts)} prompts with {num_choices} choices each are more than {MAX_CHOICES} choices.",
            param="prompt" if num_choices == 1 else "n",
            next_step="Send them as several requests.",
        )
    if fields.best_of is not None and fields.best_of != num_choices:
        raise BadRequest(
            f"best_of is {fields.best_of} and n is {num_choices}: choosing among more answers than are "
            "returned is not supported.",
            param="best_of",
            code="unsupported_parameter",
            next_step="Leave it out, or send the value of n.",
        )
    return _answer_request("completion", fields, prompts, fields.max_tokens, fields.logprobs)


def _answer_request(
    endpoint: EndpointKind,
    fields: AnswerBody,
    prompts: tuple[ChatMessages | Prompt, ...],
    max_tokens: int | None,
    top_logprobs: int | None,
) -> AnswerRequest:
    stream = bool(fields.stream)
    _check_stream_options(fields)
    return AnswerRequest(
        endpoint=endpoint,
        model=fields.model,
        prompts=prompts,
        num_choices=fields.n or 1,
        max_tokens=max_tokens,
        sampling=_sampling(fields, top_logprobs),
        is_seeded=fields.seed is not None,
        stop=_read_stop(fields.stop),
        ignore_eog=bool(fields.ignore_eos),
        stream=stream,
        include_usage=fields.stream_options is not None and bool(fields.stream_options.include_usage),
    )


def _check_stream_options(fields: AnswerBody) -> None:
    if fields.stream_options is None:
        return
    if not fields.stream:
        raise BadRequest("stream_options needs stream to be true.", param="stream_options")
    if fields.stream_options.include_obfuscation:
        raise BadRequest(
            "stream_options.include_obfuscation is not supported by this server.",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
            next_step="Leave it out, or send false.",
        )


def _sampling(fields: AnswerBody, top_logprobs: int | None) -> SamplingParams:
    neutral = SamplingParams()
    return SamplingParams(
        temperature=neutral.temperature if fields.temperature is None else float(fields.temperature),
        top_k=neutral.top_k if fields.top_k is None else fields.top_k,
        top_p=neutral.top_p if fields.top_p is None else float(fields.top_p),
        min_p=neutral.min_p if fields.min_p is None else float(fields.min_p),
        # A negative seed is an ordinary seed (-1 is not "random"): its 64 bits, read as unsigned.
        seed=0 if fields.seed is None else fields.seed % 2**64,
        presence_penalty=float(fields.presence_penalty or 0),
        frequency_penalty=float(fields.frequency_penalty or 0),
        logit_bias=read_logit_bias(fields.logit_bias),
        top_logprobs=top_logprobs,
    )


def _chat_logprobs(fields: ChatBody) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise BadRequest(
            f"top_logprobs is {fields.top_logprobs}, but logprobs is not true.",
            param="top_logprobs",
            next_step="Send logprobs: true with it.",
        )
    return None


def _chat_max_tokens(fields: ChatBody) -> int | None:
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadRequest(
            f"max_tokens is {old} but max_completion_tokens is {new}.",
            param="max_tokens",
            next_step="Send only max_completion_tokens.",
        )
    return old if new is None else new


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
