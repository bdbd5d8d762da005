"""GET /admin/trace: where one request's time went, which only this machine may read."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from shoal.gateway.error_replies import ErrorReply, JsonResponse
from shoal.gateway.health import is_local, local_only
from shoal.pipeline.interface import ClusterView


def trace_routes(view: ClusterView) -> APIRouter:
    """GET /admin/trace (the newest request) and /admin/trace/{request_id}: its `x-request-id`, or
    the `id` of its completion."""
    router = APIRouter()

    @router.get("/admin/trace")
    async def newest(request: Request) -> Response:
        return _reply(request, None)

    @router.get("/admin/trace/{request_id}")
    async def one(request: Request, request_id: str) -> Response:
        return _reply(request, request_id)

    def _reply(request: Request, request_id: str | None) -> Response:
        if not is_local(request):
            return local_only("shoal trace")
        answers = view.request_times(request_id)
        if not answers:
            which = "No request" if request_id is None else f"No request {request_id[:100]!r}"
            return ErrorReply(
                404, f"{which} is remembered here; the last ones are.",
                "invalid_request_error", "unknown_request",
            ).response()  # fmt: skip
        return JsonResponse({"answers": msgspec.to_builtins(answers)})

    return router
