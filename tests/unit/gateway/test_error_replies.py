"""Errors as replies: status, type, hints, and nothing of ours leaking out."""

from __future__ import annotations

import json

import pytest

from shoal.core.errors import (
    BadRequest,
    Cancelled,
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    KvExhausted,
    ModelNotFound,
    NodeLost,
    NotReady,
    Overloaded,
    StageTimeout,
)
from shoal.gateway.error_replies import reply_to
from shoal.gateway.request_body import BodyTimeout, BodyTooLarge, UnsupportedMediaType


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "has_hint"),
    [
        (BadRequest("x"), 400, "invalid_request_error", "invalid_value", False),
        (
            ContextLengthExceeded(prompt_tokens=9, max_tokens=0, n_ctx=8, param="messages"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            False,
        ),
        (ModelNotFound(asked="x", served=["y"]), 404, "invalid_request_error", "model_not_found", False),
        (UnsupportedMediaType("x"), 415, "invalid_request_error", "unsupported_media_type", False),
        (BodyTooLarge(), 413, "invalid_request_error", "body_too_large", False),
        (BodyTimeout("x"), 408, "invalid_request_error", "body_timeout", False),
        (Overloaded("x", retry_after_s=0.2), 429, "rate_limit_error", "overloaded", True),
        (NotReady("x", retry_after_s=5), 503, "server_error", "not_ready", True),
        (NodeLost(node="n", layers="l", cause="c"), 503, "server_error", "node_lost", True),
        (StageTimeout("x"), 503, "server_error", "stage_timeout", True),
        (Cancelled("x"), 503, "server_error", "cancelled", True),
        (EngineError("x"), 500, "server_error", "engine_error", False),
        (KvExhausted("x"), 500, "server_error", "kv_exhausted", False),
        (ConfigError("x"), 500, "server_error", "config_error", False),
        (OSError("x"), 500, "server_error", "internal_error", False),
    ],
)
def test_status_type_and_hint(error: Exception, status: int, kind: str, code: str, has_hint: bool) -> None:
    reply = reply_to(error, request_id="req-1")
    assert (reply.status, reply.type, reply.code) == (status, kind, code)
    assert ("Retry-After" in reply.headers) == has_hint
    assert all(int(hint) >= 1 for hint in reply.headers.values())


def test_the_next_step_is_part_of_the_message() -> None:
    reply = reply_to(BadRequest("This is wrong.", next_step="Do that."), request_id="req-1")
    assert reply.message == "This is wrong. Do that."


def test_a_bug_is_logged_with_its_cause_and_answered_without(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("secret")
    except ValueError as error:
        reply = reply_to(error, request_id="req-1")
    assert "secret" not in reply.message
    assert "req-1" in reply.message
    assert "secret" in caplog.text
    assert caplog.records[0].request_id == "req-1"  # type: ignore[attr-defined]


def test_texts_that_are_not_unicode_still_make_a_valid_reply() -> None:
    reply = reply_to(BadRequest("name \udc80", param="\ud800"), request_id="req-1")
    error = json.loads(bytes(reply.response().body).decode())["error"]
    assert error["message"] == "name \\udc80"
    assert error["param"] == "\\ud800"
