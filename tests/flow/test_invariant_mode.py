"""Invariant mode over real sockets and threads: load does not change an answer."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from shoal.core.config import DriverConfig, EngineConfig
from shoal.core.sequence import GenerateRequest, SamplingParams, TextDelta
from shoal.core.specs import LayerRange
from shoal.model.slicing import cut_embedding, cut_slice
from shoal.pipeline.driver import Driver
from tests.support.digest_reference import NumberVocabulary
from tests.support.local_pipeline import local_pipeline
from tests.support.slice_chain import even_cuts
from tests.support.tiny_models import write_tiny_model

NUM_LAYERS = 6
N_CTX = 200


def _engines(folder: Path) -> list[tuple[LayerRange, EngineConfig]]:
    model = write_tiny_model(folder / "tiny.gguf", "qwen3", num_layers=NUM_LAYERS, weights="F16")
    embedding = cut_embedding(model, folder / "embedding.gguf")
    engines = []
    for layers in even_cuts(NUM_LAYERS, 3):
        path = cut_slice(model, layers, folder / f"{layers.start}.gguf")
        engine = EngineConfig("llama", path, embedding, n_ctx=N_CTX, max_sequences=6, invariant=True)
        engines.append((layers, engine))
    return engines


def _request(number: int) -> GenerateRequest:
    rng = random.Random(number)
    prompt = tuple(rng.randrange(280) for _ in range(rng.randint(1, 150)))
    sampling = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=number)
    return GenerateRequest(f"r{number}", prompt, rng.randint(1, 40), sampling)


async def _answer(driver: Driver, request: GenerateRequest) -> str:
    pieces = [event.text async for event in driver.generate(request) if isinstance(event, TextDelta)]
    return "".join(pieces)


async def _together(driver: Driver, requests: list[GenerateRequest]) -> list[str]:
    return await asyncio.gather(*(_answer(driver, request) for request in requests))


async def _one_by_one(driver: Driver, requests: list[GenerateRequest]) -> list[str]:
    return [await _answer(driver, request) for request in requests]


def test_sixteen_requests_at_once_get_the_answers_that_each_gets_alone(tmp_path: Path) -> None:
    requests = [_request(number) for number in range(16)]
    config = DriverConfig(invariant=True, chunk_tokens=32)
    with local_pipeline(_engines(tmp_path), NumberVocabulary(), n_ctx=N_CTX, config=config) as (driver, _):
        together = asyncio.run(_together(driver, requests))
        alone = asyncio.run(_one_by_one(driver, requests))
    assert together == alone
    assert len(set(alone)) == len(alone)
