"""The HTTP application: OpenAI's routes over one model, health, and the status of the cluster.

Each answer goes the same way: body -> checked request -> tokens -> generator -> reply. The
generator's first event is awaited before the status line is sent, so that a full queue or a
missing machine is a status code and not a broken stream.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Literal

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from shoal.core.errors import BadRequest, ContextLengthExceeded, ModelNotFound, ShoalError
from shoal.core.sequence import Finished, FinishReason, GenerateEvent, GenerateRequest
from shoal.gateway.answer_format import AnswerFormat
from shoal.gateway.edge import Edge
from shoal.gateway.error_replies import ErrorReply, JsonResponse, reply_to
from shoal.gateway.event_stream import KEEP_ALIVE_S, EventStream
from shoal.gateway.health import health_routes
from shoal.gateway.openai_api import AnswerRequest, parse_chat, parse_completion
from shoal.gateway.request_body import read_json_object
from shoal.gateway.service import ModelService
from shoal.gateway.watched_events import WatchedEvents
from shoal.pipeline.interface import ClusterView

DEFAULT_MAX_TOKENS = 1024
"""Where a request names no limit: this, or what the context leaves, if that is less."""

_ROOT_TEXT = (
    "Shoal serves {model} here, over OpenAI's API.\n"
    "Base URL for clients: this address plus /v1. Try: shoal chat\n"
    "Also: /v1/models, /health/live, /health/ready\n"
)


def create_app(
    service: ModelService,
    view: ClusterView,
    *,
    draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
    now_s: Callable[[], float] = time.time,
    keep_alive_s: float = KEEP_ALIVE_S,
) -> FastAPI:
    """The application for one model.

    draw_seed: for requests that name none. now_s: unix seconds, for `created`.
    keep_alive_s: longest silence on a stream.
    """
    answers = _Answers(service, draw_seed, now_s, keep_alive_s)
    # The documentation pages load scripts from the internet; a LAN may have none.
    app = FastAPI(title="Shoal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(Edge)
    app.add_exception_handler(ShoalError, _reply_to_error)
    app.add_exception_handler(HTTPException, _reply_to_http_exception)
    app.include_router(health_routes(view))

    @app.get("/")
    async def root() -> Response:
        return PlainTextResponse(_ROOT_TEXT.format(model=service.model_id))

    @app.get("/v1/models")
    async def models() -> Response:
        return JsonResponse({"object": "list", "data": [_model_entry(service)]})

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Response:
        if model_id != service.model_id:
            raise ModelNotFound(asked=model_id[:200], served=[service.model_id])
        return JsonResponse(_model_entry(service))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answers.answer(request, "chat", parse_chat(await read_json_object(request)))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answers.answer(request, "completion", parse_completion(await read_json_object(request)))

    return app


class _Answers:
    """Turns checked requests into responses."""

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

    async def answer(
        self, request: Request, endpoint: Literal["chat", "completion"], asked: AnswerRequest
    ) -> Response:
        self._check_model(asked.model)
        prompt_tokens = await self._encode(asked)
        max_tokens = self._max_tokens(asked, len(prompt_tokens))
        request_id: str = request.state.request_id
        answer = AnswerFormat(
            endpoint=endpoint,
            # The same digits as in x-request-id: one search finds both in a log.
            answer_id=request_id.replace("req-", "chatcmpl-" if endpoint == "chat" else "cmpl-", 1),
            created=int(self._now_s()),
            model=self._service.model_id,
            include_usage=asked.include_usage,
        )
        generate = self._generate(asked, answer.answer_id, prompt_tokens, max_tokens)
        events = WatchedEvents(generate, request.receive)
        if not asked.stream:
            return JsonResponse(await _whole_answer(events, answer))
        try:
            first = await events.next(quiet_s=self._keep_alive_s)
        except BaseException:
            await events.close()
            raise
        return EventStream(events, first, answer, request_id=request_id, keep_alive_s=self._keep_alive_s)

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

    async def _encode(self, asked: AnswerRequest) -> tuple[int, ...]:
        # In a thread whatever its length: a chat template is a program that may take its time,
        # and streams go on meanwhile.
        if isinstance(asked.prompt, str):
            tokens = await asyncio.to_thread(self._service.encode_text, asked.prompt)
        else:
            tokens = await asyncio.to_thread(self._service.encode_chat, asked.prompt)
        if not tokens:
            raise BadRequest(f"{asked.prompt_param} holds no text.", param=asked.prompt_param)
        return tuple(tokens)

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

    def _generate(
        self, asked: AnswerRequest, answer_id: str, prompt_tokens: tuple[int, ...], max_tokens: int
    ) -> AsyncGenerator[GenerateEvent, None]:
        if max_tokens == 0:
            return _empty_answer(len(prompt_tokens))
        sampling = asked.sampling if asked.is_seeded else replace(asked.sampling, seed=self._draw_seed())
        return self._service.generator.generate(
            GenerateRequest(
                request_id=answer_id,
                prompt_tokens=prompt_tokens,
                max_tokens=max_tokens,
                sampling=sampling,
                stop=asked.stop,
                ignore_eog=asked.ignore_eog,
            )
        )


async def _whole_answer(events: WatchedEvents, answer: AnswerFormat) -> dict[str, object]:
    texts: list[str] = []
    async with events:
        while True:
            event = await events.next()
            if isinstance(event, Finished):
                return answer.whole("".join(texts), event)
            if event is not None:
                texts.append(event.text)


async def _empty_answer(num_prompt_tokens: int) -> AsyncGenerator[GenerateEvent, None]:
    """For max_tokens 0, which legacy clients send to count a prompt's tokens."""
    yield Finished(FinishReason.LENGTH, num_prompt_tokens, 0)


def _model_entry(service: ModelService) -> dict[str, object]:
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "shoal",
        # Not OpenAI's; several clients read it under this name.
        "max_model_len": service.n_ctx,
    }


async def _reply_to_error(request: Request, error: Exception) -> Response:
    return reply_to(error, request_id=request.state.request_id).response()


async def _reply_to_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            message, code = f"There is nothing at {request.url.path[:200]!r} here.", "unknown_url"
        case 405:
            message, code = f"{request.url.path[:200]!r} does not take {request.method}.", "wrong_method"
        case _:
            message, code = error.detail, "http_error"
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    headers = dict(error.headers or {})
    return ErrorReply(error.status_code, message, kind, code, headers=headers).response()
