"""A checked request becomes a response: prompts into tokens, choices out of the pipeline.

The generator's first event is awaited before the status line is sent, so that a full queue or a
missing machine is a status code and not a broken stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from shoal.core.errors import BadRequest, ContextLengthExceeded, ModelNotFound
from shoal.core.sequence import BANNED, ChoiceEvent, Finished, FinishReason, GenerateRequest
from shoal.gateway.answer_format import AnswerFormat, Shape
from shoal.gateway.choices import ChoicesSoFar, seed_of_choice
from shoal.gateway.error_replies import JsonResponse
from shoal.gateway.event_stream import EventStream
from shoal.gateway.openai_api import AnswerRequest
from shoal.gateway.service import ModelService
from shoal.gateway.watched_events import WatchedEvents

DEFAULT_MAX_TOKENS = 1024
"""Where a request names no limit: this, or what the context leaves, if that is less."""

PromptTokens = tuple[int, ...]


class Answers:
    """Turns checked requests into responses.

    draw_seed: for requests that name none. now_s: unix seconds. keep_alive_s: longest silence on
    a stream.
    """

    def __init__(
        self,
        service: ModelService,
        draw_seed: Callable[[], int],
        now_s: Callable[[], float],
        keep_alive_s: float,
    ) -> None:
        self._service = service
        self._draw_seed = draw_seed
        self._now_s = now_s
        self._keep_alive_s = keep_alive_s

    async def answer(self, request: Request, asked: AnswerRequest) -> Response:
        """Raises BadRequest kinds for what does not fit this model, and what the pipeline raises
        before its first event."""
        self._check_model(asked.model)
        self._check_bias(asked)
        prompts = await self._encode(asked)
        max_tokens = [self._max_tokens(asked, len(prompt)) for prompt in prompts]
        request_id: str = request.state.request_id
        answer = AnswerFormat(
            endpoint=asked.endpoint,
            # The same digits as in x-request-id: one search finds both in a log.
            answer_id=request_id.replace("req-", "chatcmpl-" if asked.endpoint == "chat" else "cmpl-", 1),
            created=int(self._now_s()),
            model=self._service.model_id,
            fingerprint=self._service.fingerprint,
            prompt_tokens=sum(map(len, prompts)),
            num_choices=len(prompts) * asked.num_choices,
            has_logprobs=asked.sampling.top_logprobs is not None,
            include_usage=asked.include_usage,
        )
        events = WatchedEvents(self._generate(asked, answer, prompts, max_tokens), request.receive)
        if not asked.stream:
            return JsonResponse(await _whole_answer(events, answer))
        try:
            first = await events.next(quiet_s=self._keep_alive_s)
        except BaseException:
            await events.close()
            raise
        return EventStream(events, first, answer, request_id=request_id, keep_alive_s=self._keep_alive_s)

    # ------------------------------------------------------------ what only this model can say

    def _check_model(self, asked: str | None) -> None:
        served = [self._service.model_id]
        if asked is None:
            raise BadRequest(
                "model is missing.",
                param="model",
                code="missing_required_parameter",
                next_step=f"Served: {', '.join(served)}.",
            )
        if asked not in served:
            raise ModelNotFound(asked=asked[:200], served=served)

    def _check_bias(self, asked: AnswerRequest) -> None:
        logit_bias, n_vocab = asked.sampling.logit_bias, self._service.n_vocab
        for token, _ in logit_bias:
            if token >= n_vocab:
                raise BadRequest(
                    f"logit_bias names token {token}; this model's tokens are 0 to {n_vocab - 1}.",
                    param="logit_bias",
                )
        if sum(bias <= BANNED for _, bias in logit_bias) >= n_vocab:
            raise BadRequest("logit_bias bans every token of this model.", param="logit_bias")

    def _max_tokens(self, asked: AnswerRequest, num_prompt_tokens: int) -> int:
        room = self._service.n_ctx - num_prompt_tokens
        if room <= 0 or (asked.max_tokens is not None and asked.max_tokens > room):
            raise ContextLengthExceeded(
                prompt_tokens=num_prompt_tokens,
                max_tokens=asked.max_tokens or 0,
                n_ctx=self._service.n_ctx,
                param=asked.prompt_param,
            )
        return min(room, DEFAULT_MAX_TOKENS) if asked.max_tokens is None else asked.max_tokens

    async def _encode(self, asked: AnswerRequest) -> list[PromptTokens]:
        # In a thread whatever its length: a chat template is a program that may take its time,
        # and streams go on meanwhile.
        return await asyncio.to_thread(self._encode_all, asked)

    def _encode_all(self, asked: AnswerRequest) -> list[PromptTokens]:
        prompts: list[PromptTokens] = []
        for prompt in asked.prompts:
            if isinstance(prompt, str):
                tokens = tuple(self._service.encode_text(prompt))
            elif isinstance(prompt, list):
                tokens = tuple(self._service.encode_chat(prompt))
            else:
                tokens = self._check_tokens(prompt)
            if not tokens:
                raise BadRequest(f"{asked.prompt_param} holds no text.", param=asked.prompt_param)
            prompts.append(tokens)
        return prompts

    def _check_tokens(self, prompt: PromptTokens) -> PromptTokens:
        n_vocab = self._service.n_vocab
        if min(prompt) < 0 or max(prompt) >= n_vocab:
            raise BadRequest(
                f"prompt holds a token id outside this model's 0 to {n_vocab - 1}.", param="prompt"
            )
        return prompt

    # ------------------------------------------------------------ generating

    def _generate(
        self,
        asked: AnswerRequest,
        answer: AnswerFormat,
        prompts: Sequence[PromptTokens],
        max_tokens: Sequence[int],
    ) -> AsyncGenerator[ChoiceEvent, None]:
        if asked.max_tokens == 0:
            return _empty_answers(prompts, asked.num_choices)
        seed = asked.sampling.seed if asked.is_seeded else self._draw_seed()
        requests: list[GenerateRequest] = []
        for prompt, limit in zip(prompts, max_tokens, strict=True):
            for _ in range(asked.num_choices):
                choice_seed = seed_of_choice(seed, len(requests))
                requests.append(
                    GenerateRequest(
                        request_id=answer.answer_id,
                        prompt_tokens=prompt,
                        max_tokens=limit,
                        sampling=replace(asked.sampling, seed=choice_seed),
                        stop=asked.stop,
                        ignore_eog=asked.ignore_eog,
                    )
                )
        return self._service.generator.generate_choices(requests)


async def _whole_answer(events: WatchedEvents, answer: AnswerFormat) -> Shape:
    so_far = ChoicesSoFar(answer.num_choices, keep_text=True)
    async with events:
        while not so_far.are_complete:
            event = await events.next()
            if event is not None:
                so_far.add(event)
    return answer.whole(so_far)


async def _empty_answers(
    prompts: Sequence[PromptTokens], num_choices: int
) -> AsyncGenerator[ChoiceEvent, None]:
    """For max_tokens 0, which legacy clients send to count a prompt's tokens."""
    for number in range(len(prompts) * num_choices):
        yield number, Finished(FinishReason.LENGTH, len(prompts[number // num_choices]), 0)
