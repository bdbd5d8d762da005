"""Broken bodies: each an error in OpenAI's shape, in valid UTF-8."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from shoal.core.errors import BadRequest
from shoal.gateway import request_body
from shoal.gateway.request_body import MAX_BODY_BYTES, parse_json_object
from tests.unit.gateway.running_gateway import DEADLINE_S, MODEL, RunningGateway

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "m", "messages": [{"role": "user", "con',
        b"{} x",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b"{'model': 'm'}",
        '{"model": "é"}'.encode("latin-1"),
        '{"model": "模型"}'.encode("gbk"),
        '{"model": "m"}'.encode("utf-16"),
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\\ud800"}',
        b'{"model": "a\x00b"}',
        b"[" * 200 + b"]" * 200,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[]",
        b"null",
        b'"text"',
        b"5",
    ],
)
def test_broken_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_json_object(body)
    assert caught.value.code == "malformed_json"
    str(caught.value).encode()


def test_sound_bodies_are_decoded() -> None:
    assert parse_json_object('{"a": "é 模 \\ud83d\\ude00 \\u0000", "b": [1, 2.5, null]}'.encode()) == {
        "a": "é 模 😀 \x00",
        "b": [1, 2.5, None],
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        ('{"model": "模型"}'.encode("gbk"), JSON, 400),
        (b'{"model": "' + b"[" * 200 + b'"}', JSON, 400),
        (b'{"metadata": ' + b"[" * 200 + b"]" * 200 + b', "x\xc3\xa9": 1}', JSON, 400),
        (b"model=m", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", {}, 415),
        (b"{}", {"content-type": "application/json; charset=latin-1"}, 415),
        (b"{}", {**JSON, "content-encoding": "gzip"}, 415),
        (b" " * (MAX_BODY_BYTES + 1), JSON, 413),
    ],
)
def test_errors_over_http_have_openais_shape(
    http: httpx.Client, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    response = http.post(path, content=body, headers=headers)
    assert response.status_code == status
    error = json.loads(response.content.decode())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert response.headers["x-request-id"]


def test_a_body_of_unknown_length_is_bounded_too(http: httpx.Client) -> None:
    pieces = (b" " * 2**20 for _ in range(MAX_BODY_BYTES // 2**20 + 1))
    response = http.post("/v1/completions", content=pieces, headers=JSON)
    assert response.status_code == 413


def test_a_client_that_asks_before_sending_too_much_is_told_at_once(gateway: RunningGateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=DEADLINE_S) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_too_much_before_reading_gets_the_answer(gateway: RunningGateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=DEADLINE_S) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (4 * MAX_BODY_BYTES)
        )
        for _ in range(4):
            connection.sendall(b" " * MAX_BODY_BYTES)
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_is_given_up(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "BODY_DEADLINE_S", 0.05)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=DEADLINE_S) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_charset_utf8_is_accepted(http: httpx.Client) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x"})
    for media_type in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
        response = http.post("/v1/completions", content=body, headers={"content-type": media_type})
        assert response.status_code == 200


def test_a_quoted_lone_surrogate_cannot_break_the_reply(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=b'{"model": "\\udfff"}', headers=JSON)
    assert response.status_code == 400
    json.loads(response.content.decode())
