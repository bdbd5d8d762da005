"""Errors as clients see them: status, headers and OpenAI's `{"error": {...}}` body.

The only place that maps the error tree to HTTP. What is not in the tree, or is a fault of
ours, is answered without its text: that goes to the log, under the same request id.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

import msgspec
from starlette.responses import Response

from shoal.core.errors import (
    BadRequest,
    Cancelled,
    EngineError,
    ModelNotFound,
    NodeLost,
    NotReady,
    Overloaded,
    ShoalError,
    StageTimeout,
)
from shoal.gateway.request_body import BodyTimeout, BodyTooLarge, UnsupportedMediaType

RETRY_AFTER_S = 5.0
"""Hint after the loss of a machine, where the error itself carries none."""

_log = logging.getLogger(__name__)

_BAD_REQUEST_STATUS: tuple[tuple[type[BadRequest], int], ...] = (
    (ModelNotFound, 404),
    (UnsupportedMediaType, 415),
    (BodyTooLarge, 413),
    (BodyTimeout, 408),
)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """One error, ready to be sent as a response or as an event of a stream."""

    status: int
    message: str
    type: str
    code: str | None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        return JsonResponse(self.body(), status=self.status, headers=self.headers)


class JsonResponse(Response):
    """JSON in UTF-8, written by msgspec."""

    media_type = "application/json"

    def __init__(self, content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(msgspec.json.encode(content), status_code=status, headers=headers)


def reply_to(error: Exception, *, request_id: str) -> ErrorReply:
    """The reply for any exception. Logs those that a person should look at."""
    match error:
        case BadRequest():
            status = next((s for kind, s in _BAD_REQUEST_STATUS if isinstance(error, kind)), 400)
            return _reply(error, status, "invalid_request_error", param=error.param)
        case Overloaded():
            return _reply(error, 429, "rate_limit_error", retry_after_s=error.retry_after_s)
        case NotReady():
            return _reply(error, 503, "server_error", retry_after_s=error.retry_after_s)
        case NodeLost() | StageTimeout() | Cancelled():
            _log.warning("answer ended by an error", extra=_facts(error, request_id))
            return _reply(error, 503, "server_error", retry_after_s=RETRY_AFTER_S)
        case EngineError():
            _log.error("answer ended by an engine error", extra=_facts(error, request_id))
            return _reply(error, 500, "server_error")
    _log.error("request failed", extra={"request_id": request_id}, exc_info=error)
    return ErrorReply(
        500, f"The server failed to answer. Its log has the cause under {request_id}.", "server_error",
        error.code if isinstance(error, ShoalError) else "internal_error",
    )  # fmt: skip


def _reply(
    error: ShoalError,
    status: int,
    kind: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> ErrorReply:
    headers = {} if retry_after_s is None else {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
    return ErrorReply(status, _printable(str(error)), kind, error.code, param and _printable(param), headers)


def _printable(text: str) -> str:
    # An error may quote what the client sent; whatever that was, the reply is valid UTF-8.
    return text.encode(errors="backslashreplace").decode()


def _facts(error: ShoalError, request_id: str) -> dict[str, str]:
    return {"request_id": request_id, "error": str(error)}
