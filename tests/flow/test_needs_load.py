"""Many requests at once, and clients that leave, against a whole pipeline over HTTP.

R22: mixed lengths at once. R23: overload. R26: clients that leave, in the queue, in a prompt and
between two tokens, whole and streamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from shoal.core.config import DriverConfig
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.simulator.virtual_cluster import VirtualCluster
from tests.support.digest_reference import NumberVocabulary
from tests.support.engine_gate import EngineGate
from tests.support.served_pipeline import (
    DEADLINE_S,
    MODEL,
    Served,
    digest_tokens,
    expected_digests,
    served_digests,
)

N_CTX = 1200


def body_of(request: GenerateRequest, *, stream: bool = False) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": list(request.prompt_tokens),
        "max_tokens": request.max_tokens,
        "temperature": request.sampling.temperature,
        "seed": request.sampling.seed,
        "ignore_eos": request.ignore_eog,
        "stream": stream,
    }


def small_request(seed: int) -> GenerateRequest:
    tokens = tuple(digest_tokens(f"request {seed}"))
    return GenerateRequest("r", tokens, 5, SamplingParams(temperature=0, seed=seed), ignore_eog=True)


async def ask(http: httpx.AsyncClient, request: GenerateRequest) -> httpx.Response:
    return await http.post("/v1/completions", json=body_of(request))


def async_client(served: Served) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=served.url, limits=limits, trust_env=False, timeout=60)


# ---------------------------------------------------------------- R22


def test_sixteen_greedy_requests_of_mixed_lengths_are_each_what_they_are_alone() -> None:
    requests = [
        GenerateRequest(
            f"r{number}",
            tuple(
                (number * 131 + position * 7) % 997
                for position in range(1 + (N_CTX * 9 // 10 - 1) * number // 15)
            ),
            1 + (number * 37) % 100,
            SamplingParams(temperature=0, seed=number),
        )
        for number in range(16)
    ]

    async def ask_all(served: Served) -> list[httpx.Response]:
        async with async_client(served) as http:
            return await asyncio.gather(*(ask(http, request) for request in requests))

    # Room for about half of them at once.
    with served_digests(n_ctx=N_CTX, cells=6 * N_CTX, max_sequences=9) as served:
        responses = asyncio.run(ask_all(served))
        for request, response in zip(requests, responses, strict=True):
            [choice] = response.json()["choices"]
            text, reason = expected_digests(request)
            assert (choice["text"], choice["finish_reason"]) == (text, reason.value)
            assert response.json()["usage"]["prompt_tokens"] == len(request.prompt_tokens)
        served.wait_until_empty()


def _waits_s(requests: list[GenerateRequest]) -> list[tuple[float, float]]:
    """Of each, all asked at one moment of virtual time: the wait for the first token, the longest for
    a later one."""
    cluster = VirtualCluster(
        seed=1,
        ranges=[LayerRange(0, 2), LayerRange(2, 4)],
        make_engine=lambda layers: DigestEngine(
            layers, 4, n_vocab=997, cells=16 * N_CTX, max_sequences=16, max_batch_tokens=128
        ),
        vocabulary=NumberVocabulary(frozenset()),
        n_ctx=N_CTX,
        config=DriverConfig(),
    )
    cluster.env.run(until=3.0)
    answers = [cluster.submit(request) for request in requests]
    cluster.env.run(until=60.0)
    assert all(isinstance(answer.end, Finished) for answer in answers)
    waits = [[b - a for a, b in pairwise([3.0, *answer.pieces_s])] for answer in answers]
    return [(first, max(later)) for first, *later in waits]


def test_of_sixteen_mixed_requests_none_waits_twice_as_long_as_an_equal_share_would_make_it() -> None:
    # The longest is asked first: in the order of their coming the short ones would wait for all of it.
    lengths = [1 + (N_CTX * 9 // 10 - 1) * number // 15 for number in reversed(range(16))]
    requests = [
        GenerateRequest(f"r{n}", tuple(range(n, n + length)), 100, SamplingParams(seed=n), ignore_eog=True)
        for n, length in enumerate(lengths)
    ]
    together = _waits_s(requests)
    for request, (first_s, later_s) in zip(requests, together, strict=True):
        [(first_alone_s, later_alone_s)] = _waits_s([request])
        assert first_s < 2 * 16 * first_alone_s
        assert later_s < 2 * 16 * later_alone_s


# ---------------------------------------------------------------- R23


def test_of_two_hundred_at_once_the_excess_is_refused_while_the_others_wait_and_then_finish() -> None:
    num_active, num_waiting, num_requests = 4, 16, 200
    num_leaving = 6

    async def journey(served: Served, gate: EngineGate) -> None:
        async with async_client(served) as http:
            # Nothing is computed meanwhile: a refusal that came would not come for that.
            gate.hold()
            asked = {asyncio.create_task(ask(http, small_request(n))): n for n in range(num_requests)}
            num_refused = num_requests - num_active - num_waiting
            async with asyncio.timeout(60):
                while sum(task.done() for task in asked) < num_refused:
                    await asyncio.wait(
                        [task for task in asked if not task.done()], return_when=asyncio.FIRST_COMPLETED
                    )
            refused = [task.result() for task in asked if task.done()]
            assert [response.status_code for response in refused] == [429] * num_refused
            assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
            assert {response.json()["error"]["code"] for response in refused} == {"overloaded"}
            accepted = [task for task in asked if not task.done()]
            figures = served.driver.statistics()
            assert (figures.sessions_active, figures.sessions_waiting) == (num_active, num_waiting)

            for task in accepted[-num_leaving:]:
                task.cancel()
            # Whichever of them was active: one that waited has its place.
            await asyncio.to_thread(
                served.wait_until,
                lambda: served.driver.statistics().sessions_waiting == num_waiting - num_leaving,
            )
            gate.open()
            for task in accepted[:-num_leaving]:
                response = await task
                assert response.status_code == 200
                text, _ = expected_digests(small_request(asked[task]))
                assert response.json()["choices"][0]["text"] == text

    with served_digests(max_sequences=num_active, max_waiting=num_waiting) as served:
        asyncio.run(journey(served, EngineGate(served.workers[0])))
        served.wait_until_empty()


def test_a_request_with_many_choices_waits_as_one_and_is_refused_as_one() -> None:
    many = {**body_of(small_request(1)), "n": 5}

    async def journey(served: Served, gate: EngineGate) -> None:
        async with async_client(served) as http:
            gate.hold()
            first = asyncio.create_task(http.post("/v1/completions", json=many))
            await asyncio.to_thread(
                served.wait_until, lambda: served.driver.statistics().sessions_waiting == 3
            )
            refused = await http.post("/v1/completions", json=many)
            assert refused.status_code == 429
            figures = served.driver.statistics()
            assert (figures.sessions_active, figures.sessions_waiting) == (2, 3)
            gate.open()
            texts = [choice["text"] for choice in (await first).json()["choices"]]
            assert len(set(texts)) == 5

    with served_digests(max_sequences=2, max_waiting=1) as served:
        asyncio.run(journey(served, EngineGate(served.workers[0])))
        served.wait_until_empty()


# ---------------------------------------------------------------- R26


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with served_digests(n_ctx=N_CTX, cells=N_CTX) as service:
        yield service


@pytest.fixture(scope="module")
def gate(served: Served) -> EngineGate:
    return EngineGate(served.workers[0])


@contextlib.contextmanager
def connected(served: Served, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that has asked, and leaves at the end."""
    encoded = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(encoded), encoded)
        )
        yield connection


def long_request(*, prompt_tokens: int, max_tokens: int) -> GenerateRequest:
    prompt = tuple(position % 997 for position in range(prompt_tokens))
    return GenerateRequest("long", prompt, max_tokens, SamplingParams(seed=3), ignore_eog=True)


def leave_the_queue(served: Served, gate: EngineGate, *, stream: bool) -> None:
    gate.hold()
    with connected(served, body_of(long_request(prompt_tokens=5, max_tokens=N_CTX - 10), stream=True)):
        served.wait_until(lambda: served.driver.statistics().sessions_active == 1)
        with connected(served, body_of(long_request(prompt_tokens=5, max_tokens=100), stream=stream)):
            served.wait_until(lambda: served.driver.statistics().sessions_waiting == 1)
        served.wait_until(lambda: served.driver.statistics().sessions_waiting == 0)


def leave_a_prompt(served: Served, gate: EngineGate, *, stream: bool) -> None:
    gate.hold(after=1)
    with connected(served, body_of(long_request(prompt_tokens=600, max_tokens=50), stream=stream)):
        gate.wait_until_blocked()


def leave_at_the_third_token(served: Served, gate: EngineGate, *, stream: bool) -> None:
    gate.hold(after=3)
    with connected(
        served, body_of(long_request(prompt_tokens=5, max_tokens=50), stream=stream)
    ) as connection:
        gate.wait_until_blocked()
        received = b""
        while stream and received.count(b"data: ") < 3:
            received += connection.recv(65536)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", [leave_the_queue, leave_a_prompt, leave_at_the_third_token])
def test_a_client_that_leaves_leaves_nothing_behind_however_often(
    served: Served, gate: EngineGate, leave: Any, stream: bool
) -> None:
    engines: list[Any] = [worker._engine for worker in served.workers]
    with httpx.Client(base_url=served.url, trust_env=False, timeout=DEADLINE_S) as http:
        for number in range(17):
            leave(served, gate, stream=stream)
            served.wait_until(lambda: served.driver.statistics().sessions_active == 0)
            gate.open()
            served.wait_until_empty()
            served.wait_until(lambda: not any(engine.cells_used for engine in engines))
            response = http.post("/v1/completions", json=body_of(small_request(number)))
            assert response.json()["choices"][0]["text"] == expected_digests(small_request(number))[0]
