"""Liveness, readiness and the admin routes, which only this machine may use."""

from __future__ import annotations

import ipaddress

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from shoal.core.errors import BadRequest, ConfigError, NotReady
from shoal.core.status import ClusterStatus
from shoal.gateway.error_replies import ErrorReply, JsonResponse, reply_to
from shoal.pipeline.interface import ClusterView

READY_RETRY_AFTER_S = 5.0


def health_routes(view: ClusterView) -> APIRouter:
    """GET /health/live, /health/ready and /admin/status, POST /admin/leave."""
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> Response:
        return JsonResponse({"status": "live"})

    @router.get("/health/ready")
    async def ready(request: Request) -> Response:
        if view.is_ready():
            return JsonResponse({"status": "ready"})
        error = NotReady(why_not_ready(view.status()), retry_after_s=READY_RETRY_AFTER_S)
        return reply_to(error, request_id=request.state.request_id).response()

    @router.get("/admin/status")
    async def status(request: Request) -> Response:
        if not is_local(request):
            return local_only("shoal status")
        return JsonResponse(msgspec.to_builtins(view.status()))

    @router.post("/admin/leave")
    async def leave(request: Request) -> Response:
        if not is_local(request):
            return local_only("shoal leave")
        try:
            node = _LEAVE.decode(await request.body()).node
            view.leave(node)
        except msgspec.DecodeError as error:
            refused = BadRequest(f'The body is not {{"node": "NAME"}}: {error}.', param="node")
        except ConfigError as error:
            refused = BadRequest(error.message, param="node", next_step=error.next_step)
        else:
            return JsonResponse({"leaving": node})
        return reply_to(refused, request_id=request.state.request_id).response()

    return router


class _Leave(msgspec.Struct):
    node: str


_LEAVE = msgspec.json.Decoder(_Leave)


def local_only(command: str) -> Response:
    """The refusal of an admin route. command: what does the same on the head."""
    message = f"The admin routes answer this machine only. Run `{command}` on the head."
    return ErrorReply(403, message, "permission_error", "local_only").response()


def why_not_ready(status: ClusterStatus) -> str:
    """One sentence: the layers that nobody holds, or that no token was made yet."""
    if not status.missing_layers:
        return "All layers have an owner, but no token has been produced yet."
    ranges = ", ".join(f"[{start}, {end})" for start, end in status.missing_layers)
    return f"Layers {ranges} have no live owner."


def is_local(request: Request) -> bool:
    """Whether a request comes from this machine, as far as can be told."""
    # Behind a proxy on this machine every client looks local; a web page that resolves its own
    # name to 127.0.0.1 is local too, but names another host.
    if "forwarded" in request.headers or "x-forwarded-for" in request.headers:
        return False
    if request.client is None or not _is_loopback(request.client.host):
        return False
    host = request.url.hostname
    return host is not None and (host == "localhost" or _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
