"""The HTTP application: OpenAI's routes over one model, health, and the status of the cluster.

Each answer goes the same way: body -> checked request -> tokens -> generator -> reply.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from shoal.core.errors import ModelNotFound, ShoalError
from shoal.gateway.answers import Answers
from shoal.gateway.edge import Edge
from shoal.gateway.error_replies import ErrorReply, JsonResponse, reply_to
from shoal.gateway.event_stream import KEEP_ALIVE_S
from shoal.gateway.health import health_routes
from shoal.gateway.metrics import metrics_routes
from shoal.gateway.openai_api import parse_chat, parse_completion
from shoal.gateway.request_body import read_json_object
from shoal.gateway.service import ModelService
from shoal.gateway.trace_routes import trace_routes
from shoal.pipeline.interface import ClusterView

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
    answers = Answers(service, draw_seed, now_s, keep_alive_s)
    # The documentation pages load scripts from the internet; a LAN may have none.
    app = FastAPI(title="Shoal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(Edge)
    app.add_exception_handler(ShoalError, _reply_to_error)
    app.add_exception_handler(HTTPException, _reply_to_http_exception)
    for routes in (health_routes, trace_routes, metrics_routes):
        app.include_router(routes(view))

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
        return await answers.answer(request, parse_chat(await read_json_object(request)))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answers.answer(request, parse_completion(await read_json_object(request)))

    return app


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
