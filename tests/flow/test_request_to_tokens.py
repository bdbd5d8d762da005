"""A request's journey over real sockets: driver, stage to stage, and back as text."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import pytest

from shoal.core.config import DriverConfig, EngineConfig
from shoal.core.errors import ContextLengthExceeded, NodeLost, NotReady, Overloaded
from shoal.core.sequence import Finished, FinishReason, GenerateRequest, SamplingParams, TextDelta
from shoal.core.specs import LayerRange
from shoal.pipeline.driver import Driver
from shoal.worker.slice_worker import SliceWorker
from tests.support.digest_reference import NumberVocabulary, digest_answer
from tests.support.local_pipeline import local_pipeline

N_VOCAB = 997
NUM_LAYERS = 9
N_CTX = 4096
VOCABULARY = NumberVocabulary(frozenset({7}))


def _engines(num_stages: int, *, cells: int = 8192) -> list[tuple[LayerRange, EngineConfig]]:
    bounds = [NUM_LAYERS * stage // num_stages for stage in range(num_stages + 1)]
    engine = EngineConfig(
        "digest", None, None, n_ctx=N_CTX, cells=cells, max_batch_tokens=64, n_vocab=N_VOCAB
    )
    return [(LayerRange(start, end), engine) for start, end in itertools.pairwise(bounds)]


def _request(number: int, *, prompt_tokens: int = 5, max_tokens: int = 12) -> GenerateRequest:
    prompt = tuple((number * 31 + position * 7) % N_VOCAB for position in range(prompt_tokens))
    return GenerateRequest(f"r{number}", prompt, max_tokens, SamplingParams(temperature=1.0, seed=number))


async def _answer(driver: Driver, request: GenerateRequest) -> tuple[str, FinishReason]:
    text = ""
    async for event in driver.generate(request):
        if isinstance(event, TextDelta):
            text += event.text
        else:
            assert event.prompt_tokens == len(request.prompt_tokens)
            return text, event.reason
    raise AssertionError("no end")


def _expected(request: GenerateRequest) -> tuple[str, FinishReason]:
    return digest_answer(request, num_layers=NUM_LAYERS, n_vocab=N_VOCAB, vocabulary=VOCABULARY)


async def _wait_until(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


def _is_empty(driver: Driver, workers: list[SliceWorker]) -> bool:
    figures = driver.statistics()
    nothing = figures.sessions_active == figures.cells_reserved == figures.steps_in_flight == 0
    return nothing and all(worker._core.num_sessions == 0 for worker in workers)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_the_text_is_the_same_however_many_stages_compute_it(num_stages: int) -> None:
    request = _request(1, prompt_tokens=150, max_tokens=40)
    with local_pipeline(_engines(num_stages), VOCABULARY, n_ctx=N_CTX) as (driver, _):
        assert asyncio.run(_answer(driver, request)) == _expected(request)


def test_sixteen_requests_of_very_different_lengths_each_get_their_own_text() -> None:
    requests = [
        _request(n, prompt_tokens=1 + (n * 53) % 300, max_tokens=1 + (n * 29) % 90) for n in range(16)
    ]

    async def ask_all(driver: Driver) -> list[tuple[str, FinishReason]]:
        return await asyncio.gather(*(_answer(driver, request) for request in requests))

    # Room for a few at a time, so that some wait for admission.
    with local_pipeline(_engines(3, cells=1200), VOCABULARY, n_ctx=N_CTX) as (driver, workers):
        answers = asyncio.run(ask_all(driver))
        assert answers == [_expected(request) for request in requests]
        asyncio.run(_wait_until(lambda: _is_empty(driver, workers)))


@pytest.mark.parametrize("events_before", [0, 3])
def test_a_client_that_leaves_frees_its_session_on_every_stage(events_before: int) -> None:
    async def leave(driver: Driver, workers: list[SliceWorker]) -> None:
        events = driver.generate(_request(2, prompt_tokens=3500, max_tokens=200))
        if events_before == 0:
            first = asyncio.ensure_future(anext(events))
            await _wait_until(lambda: driver.statistics().sessions_active == 1)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        for _ in range(events_before):
            await anext(events)
        await events.aclose()
        await _wait_until(lambda: _is_empty(driver, workers))

    with local_pipeline(_engines(3), VOCABULARY, n_ctx=N_CTX) as (driver, workers):
        asyncio.run(leave(driver, workers))
        request = _request(3)
        assert asyncio.run(_answer(driver, request)) == _expected(request)


def test_a_client_that_leaves_after_one_of_its_choices_has_ended_frees_the_others() -> None:
    async def leave(driver: Driver, workers: list[SliceWorker]) -> None:
        choices = [_request(1, max_tokens=2), _request(2, max_tokens=3000), _request(3, max_tokens=3000)]
        events = driver.generate_choices(choices)
        async for choice, event in events:
            if isinstance(event, Finished):
                assert choice == 0
                break
        assert driver.statistics().sessions_active == 2
        await events.aclose()
        assert driver.statistics().sessions_active == 0
        await _wait_until(lambda: _is_empty(driver, workers))

    with local_pipeline(_engines(2), VOCABULARY, n_ctx=N_CTX) as (driver, workers):
        asyncio.run(leave(driver, workers))


def test_choices_that_fail_end_their_request_with_one_error() -> None:
    async def journey(driver: Driver) -> None:
        events = driver.generate_choices([_request(n, max_tokens=400) for n in range(3)])
        await anext(events)
        driver.fail_all(NodeLost(node="n1", layers="[4, 9)", cause="the process was killed"))
        with pytest.raises(NodeLost):
            async for _ in events:
                pass
        assert driver.statistics().sessions_active == 0

    with local_pipeline(_engines(2), VOCABULARY, n_ctx=N_CTX) as (driver, _):
        asyncio.run(journey(driver))


def test_a_queued_client_that_leaves_is_forgotten_and_the_others_go_on() -> None:
    async def journey(driver: Driver) -> None:
        running = asyncio.ensure_future(_answer(driver, _request(4, max_tokens=300)))
        await _wait_until(lambda: driver.statistics().sessions_active == 1)
        queued = asyncio.ensure_future(_answer(driver, _request(5, max_tokens=300)))
        await _wait_until(lambda: driver.statistics().sessions_waiting == 1)
        queued.cancel()
        await _wait_until(lambda: driver.statistics().sessions_waiting == 0)
        assert await running == _expected(_request(4, max_tokens=300))

    with local_pipeline(_engines(2, cells=400), VOCABULARY, n_ctx=400) as (driver, _):
        asyncio.run(journey(driver))


def test_what_does_not_fit_is_refused_at_the_door() -> None:
    config = DriverConfig(max_waiting=1)

    async def journey(driver: Driver) -> None:
        with pytest.raises(ContextLengthExceeded, match="context is 400 tokens"):
            await _answer(driver, _request(6, prompt_tokens=390, max_tokens=11))
        running = asyncio.ensure_future(_answer(driver, _request(7, max_tokens=300)))
        await _wait_until(lambda: driver.statistics().sessions_active == 1)
        waiting = asyncio.ensure_future(_answer(driver, _request(8, max_tokens=300)))
        await _wait_until(lambda: driver.statistics().sessions_waiting == 1)
        with pytest.raises(Overloaded):
            await _answer(driver, _request(9))
        assert await running == _expected(_request(7, max_tokens=300))
        assert await waiting == _expected(_request(8, max_tokens=300))

    with local_pipeline(_engines(2, cells=400), VOCABULARY, n_ctx=400, config=config) as (driver, _):
        asyncio.run(journey(driver))


def test_a_pipeline_that_cannot_go_on_ends_its_requests_with_an_error_and_refuses_new_ones() -> None:
    async def journey(driver: Driver) -> None:
        events = driver.generate(_request(10, max_tokens=400))
        await anext(events)
        driver.fail_all(NodeLost(node="n1", layers="[4, 9)", cause="the process was killed"))
        with pytest.raises(NodeLost, match=r"Node n1 \(layers \[4, 9\)\) was lost: the process was killed"):
            async for _ in events:
                pass
        with pytest.raises(NotReady, match="n1"):
            await _answer(driver, _request(11))

    with local_pipeline(_engines(2), VOCABULARY, n_ctx=N_CTX) as (driver, _):
        asyncio.run(journey(driver))


def test_the_last_event_carries_the_usage() -> None:
    async def last(driver: Driver) -> object:
        return [event async for event in driver.generate(_request(12, max_tokens=3))][-1]

    with local_pipeline(_engines(1), VOCABULARY, n_ctx=N_CTX) as (driver, _):
        assert asyncio.run(last(driver)) == Finished(FinishReason.LENGTH, 5, 3)


def test_where_a_requests_time_went_adds_up_to_what_its_client_waited() -> None:
    async def journey(driver: Driver) -> float:
        await _answer(driver, _request(13, prompt_tokens=300, max_tokens=60))
        began_s = time.monotonic()
        await _answer(driver, _request(14, prompt_tokens=300, max_tokens=60))
        return time.monotonic() - began_s

    with local_pipeline(_engines(3), VOCABULARY, n_ctx=N_CTX) as (driver, _):
        waited_s = asyncio.run(journey(driver))
        (times,) = driver.request_times("r14")
        assert (times.prompt_tokens, times.generated_tokens, times.outcome) == (300, 60, "length")
        assert len(times.tokens) == 59
        attributed_s = sum(times.prefill) + sum(times.decode)
        assert 0.95 * times.wall_s <= attributed_s <= times.wall_s + 1e-6
        assert times.wall_s <= waited_s
        # Every stage has computed, in the prompt and in each token behind it.
        for stage in range(3):
            place = times.columns.index(f"stage {stage} compute")
            assert times.decode[place] > 0
        totals = driver.request_totals()
        assert totals.outcomes == {"length": 2}
        assert totals.generated_tokens == 120
