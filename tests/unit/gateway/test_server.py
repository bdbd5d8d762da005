"""The server: binding, and stopping in bounded time with every answer ended openly."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading

import httpx
import pytest

from shoal.core.errors import ConfigError
from shoal.gateway.app import create_app
from shoal.gateway.server import GatewayServer, check_can_listen
from shoal.gateway.service import ModelService
from tests.unit.gateway.running_gateway import (
    DEADLINE_S,
    MODEL,
    FixedView,
    Gate,
    ScriptedGenerator,
    encode_chat,
    encode_text,
)

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


def server_over(generator: ScriptedGenerator, host: str = "127.0.0.1", port: int = 0) -> GatewayServer:
    service = ModelService(MODEL, 0, 100, 50_000, generator, encode_chat, encode_text)
    return GatewayServer(create_app(service, FixedView()), host, port)


async def bound_error(host: str, port: int) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        await server_over(ScriptedGenerator(), host, port).start()
    return caught.value


def test_a_busy_port_is_named_with_what_to_type() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        error = asyncio.run(bound_error("127.0.0.1", port))
    assert f"Port {port}" in error.message
    assert error.next_step is not None
    assert "--listen 127.0.0.1:" in error.next_step


def test_an_address_is_checked_without_anybody_being_answered() -> None:
    outcomes: set[bytes | type[OSError]] = set()
    done = threading.Event()

    def poll(port: int) -> None:
        while not done.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
                    connection.sendall(b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
                    outcomes.add(connection.recv(100))
            except ConnectionError as error:
                outcomes.add(type(error))

    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port}"):
            check_can_listen("127.0.0.1", port)
    poller = threading.Thread(target=poll, args=(port,))
    poller.start()
    for _ in range(50):
        check_can_listen("127.0.0.1", port)
    done.set()
    poller.join(DEADLINE_S)
    assert outcomes
    # Dropped connections are no answer, nor is what a connection to itself says.
    assert not {
        outcome for outcome in outcomes if isinstance(outcome, bytes) and outcome.startswith(b"HTTP/")
    }


def test_of_two_servers_started_at_once_on_one_port_one_is_told() -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        servers = [server_over(ScriptedGenerator(), port=port) for _ in range(2)]
        outcomes = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        for server in servers:
            await server.stop()
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [ConfigError]

    asyncio.run(body())


def test_a_foreign_address_is_refused() -> None:
    assert "not an address of this machine" in asyncio.run(bound_error("192.0.2.1", 0)).message


def test_an_unknown_name_is_refused() -> None:
    assert "not known" in asyncio.run(bound_error("no-such-host.invalid", 0)).message


def test_a_port_can_be_bound_again_at_once() -> None:
    async def body() -> None:
        port = 0
        for _ in range(3):
            server = server_over(ScriptedGenerator(), port=port)
            await server.start()
            port = server.port
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(server.url + "/health/live")).status_code == 200
            await server.stop()

    asyncio.run(body())


def test_ipv6_loopback_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")

    async def body() -> None:
        server = server_over(ScriptedGenerator(), host="::1")
        await server.start()
        assert server.url == f"http://[::1]:{server.port}"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(server.url + "/admin/status")).status_code == 200
        await server.stop()

    asyncio.run(body())


def test_signals_are_left_to_the_process() -> None:
    async def body() -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        server = server_over(ScriptedGenerator())
        await server.start()
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        await server.stop()

    asyncio.run(body())


def test_stop_before_start_and_twice_is_harmless() -> None:
    async def body() -> None:
        server = server_over(ScriptedGenerator())
        await server.stop()
        await server.start()
        await server.stop()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))

    asyncio.run(body())


def test_stop_ends_answers_that_hang_with_an_error_and_closes_their_generators() -> None:
    async def body() -> None:
        generator = ScriptedGenerator()
        gates = [Gate(), Gate()]
        server = server_over(generator)
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=DEADLINE_S) as client:
            generator.script = ["Hello", gates[0]]
            streamed = asyncio.create_task(client.post("/v1/chat/completions", json={**BODY, "stream": True}))
            await asyncio.to_thread(gates[0].reached.wait, DEADLINE_S)
            generator.script = [gates[1]]
            whole = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
            await asyncio.to_thread(gates[1].reached.wait, DEADLINE_S)
            await server.stop()
            last = (await streamed).text.split("\n\n")[-2]
            assert json.loads(last[6:])["error"]["code"] == "cancelled"
            assert (await whole).status_code == 503
            assert generator.num_open == 0

    asyncio.run(body())


def test_stop_cuts_a_client_that_reads_nothing() -> None:
    async def body() -> None:
        generator = ScriptedGenerator()
        generator.script = ["x" * 100_000] * 1000
        server = server_over(generator)
        await server.start()
        body = json.dumps({**BODY, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            assert await asyncio.to_thread(connection.recv, 10)
            await asyncio.wait_for(server.stop(), DEADLINE_S)
        assert generator.num_open == 0

    asyncio.run(body())
