"""Streams as bytes on the wire, and clients that leave."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from shoal.core.errors import NodeLost
from shoal.gateway import event_stream
from shoal.gateway.event_stream import event_bytes
from tests.unit.gateway.running_gateway import DEADLINE_S, MODEL, Gate, RunningGateway, running_gateway

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def impatient_gateway() -> Iterator[RunningGateway]:
    with running_gateway(keep_alive_s=0.02) as gateway:
        yield gateway


def stream_text(http: httpx.Client, path: str = "/v1/chat/completions") -> str:
    body = {**BODY, "stream": True} if "chat" in path else {"model": MODEL, "prompt": "Hi", "stream": True}
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        return response.read().decode()


def raw_request(port: int, *, stream: bool) -> socket.socket:
    body = json.dumps({**BODY, "stream": stream}).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        piece = connection.recv(4096)
        assert piece, received
        received += piece
    return received


def test_events_are_single_lines_and_end_with_done(http: httpx.Client, gateway: RunningGateway) -> None:
    gateway.follow("line\nbreak", "\u2028\x85\r")
    text = stream_text(http)
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") and len(event.splitlines()) == 1 for event in events[:-1])
    pieces = [json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events[:-2]]
    assert "".join(pieces) == "line\nbreak\u2028\x85\r"


def test_streams_forbid_caching_and_buffering(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "no-cache" in response.headers["cache-control"]
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert response.headers["x-request-id"]
        response.read()


def test_an_error_midway_is_the_last_event(http: httpx.Client, gateway: RunningGateway) -> None:
    gateway.follow("Hello", NodeLost(node="n1", layers="[0, 8)", cause="killed"))
    events = stream_text(http).split("\n\n")[:-1]
    assert json.loads(events[-1][6:])["error"]["code"] == "node_lost"
    assert "[DONE]" not in "".join(events)
    assert '"finish_reason":"' not in "".join(events)


def test_a_bug_midway_is_an_event_without_its_text(http: httpx.Client, gateway: RunningGateway) -> None:
    gateway.follow("Hello", KeyError("secret"))
    last = stream_text(http).split("\n\n")[-2]
    assert json.loads(last[6:])["error"]["type"] == "server_error"
    assert "secret" not in last


def test_legacy_streams_have_no_role_chunk(http: httpx.Client) -> None:
    events = stream_text(http, "/v1/completions").split("\n\n")
    assert json.loads(events[0][6:])["choices"][0]["text"] == "Hello"


def test_silence_before_the_first_text_is_filled_with_comments(impatient_gateway: RunningGateway) -> None:
    gate = Gate()
    impatient_gateway.follow(gate, "late")
    with raw_request(impatient_gateway.port, stream=True) as connection:
        received = read_until(connection, b": keep-alive\n\n")
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b'"role":"assistant"' in received
        gate.open()
        assert b"late" in read_until(connection, b"[DONE]")


def test_silence_between_texts_is_filled_with_comments(impatient_gateway: RunningGateway) -> None:
    gate = Gate()
    impatient_gateway.follow("early", gate, "late")
    with raw_request(impatient_gateway.port, stream=True) as connection:
        read_until(connection, b": keep-alive\n\n")
        gate.open()
        assert b"late" in read_until(connection, b"[DONE]")


def test_an_error_after_a_silent_start_is_an_event(impatient_gateway: RunningGateway) -> None:
    gate = Gate()
    impatient_gateway.follow(gate, NodeLost(node="n1", layers="[0, 8)", cause="killed"))
    with raw_request(impatient_gateway.port, stream=True) as connection:
        read_until(connection, b": keep-alive")
        gate.open()
        read_until(connection, b'"code":"node_lost"')


def test_text_is_sent_as_soon_as_it_is_made(gateway: RunningGateway) -> None:
    gate = Gate()
    gateway.follow("first", gate, "second")
    with raw_request(gateway.port, stream=True) as connection:
        assert b"second" not in read_until(connection, b"first")
        gate.open()
        read_until(connection, b"second")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("texts_before", [0, 3])
def test_a_client_that_leaves_ends_the_generator(
    gateway: RunningGateway, stream: bool, texts_before: int
) -> None:
    gate = Gate()  # never opened: only closing the generator can end it
    gateway.follow(*["x"] * texts_before, gate, "never")
    with raw_request(gateway.port, stream=stream):
        assert gate.reached.wait(DEADLINE_S)
        assert not gateway.generator.ended.is_set()
    assert gateway.generator.ended.wait(DEADLINE_S)


def test_a_client_that_stops_reading_loses_its_session(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SEND_DEADLINE_S", 0.05)
    gateway.follow(*["x" * 1_000_000] * 100)
    with raw_request(gateway.port, stream=True):
        assert gateway.generator.ended.wait(DEADLINE_S)


def test_the_next_request_after_a_client_left_is_answered(
    http: httpx.Client, gateway: RunningGateway
) -> None:
    for stream in (True, False) * 5:
        gate = Gate()
        gateway.follow("x", gate)
        with raw_request(gateway.port, stream=stream):
            assert gate.reached.wait(DEADLINE_S)
        assert gateway.generator.ended.wait(DEADLINE_S)
        gateway.follow("fine")
        answer = http.post("/v1/chat/completions", json=BODY).json()
        assert answer["choices"][0]["message"]["content"] == "fine"


def test_a_client_that_leaves_during_its_body_is_forgotten(
    http: httpx.Client, gateway: RunningGateway
) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=DEADLINE_S) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
    assert http.get("/health/live").status_code == 200
    assert gateway.generator.requests == []


def test_other_streams_go_on_while_one_fails(http: httpx.Client, gateway: RunningGateway) -> None:
    gate = Gate()
    gateway.follow("first", gate, "second")
    with raw_request(gateway.port, stream=True) as connection:
        read_until(connection, b"first")
        gateway.generator.script = [ValueError("bug")]
        assert http.post("/v1/chat/completions", json=BODY).status_code == 500
        assert http.post("/v1/chat/completions", content=b"{").status_code == 415
        gate.open()
        assert b"second" in read_until(connection, b"[DONE]")


def test_event_bytes_round_trip() -> None:
    chunk: dict[str, object] = {"text": "a\u2028b\u2029c\x85d\n😀"}
    encoded = event_bytes(chunk)
    assert json.loads(encoded.decode().removeprefix("data: ")) == chunk
    assert len(encoded.decode().rstrip("\n").splitlines()) == 1
