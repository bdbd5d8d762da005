"""Invariant mode under load: production's policy in virtual time, over engines that really compute.

Every token of every request must come from the same bits of logits as when the request is alone on
an undivided model, in other chunks: whatever else runs, wherever the model is cut, and though the
network loses, repeats and reorders messages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.config import DriverConfig, EngineConfig
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.core.specs import LayerRange
from shoal.model.slicing import cut_embedding, cut_slice
from shoal.simulator.virtual_cluster import VirtualCluster
from shoal.simulator.virtual_network import NetworkFaults
from tests.support.digest_reference import NumberVocabulary
from tests.support.recording_engine import Drawn, RecordingEngine
from tests.support.slice_chain import even_cuts
from tests.support.tiny_models import Architecture, WeightType, write_tiny_model

NUM_LAYERS = 5
N_CTX = 255  # and a cell for repetitions make 256, llama.cpp's step: there are no others
VOCABULARY = NumberVocabulary()
Engines = dict[LayerRange, RecordingEngine]
FAULTS = NetworkFaults(jitter_s=0.002, loss=0.02, duplication=0.02)


@contextmanager
def _engines(
    model: Path, cuts: Sequence[LayerRange], folder: Path, *, sequences: int, invariant: bool = True
) -> Iterator[Engines]:
    config = EngineConfig(
        kind="llama",
        slice_path=None,
        embedding_path=cut_embedding(model, folder / "embedding.gguf"),
        n_ctx=N_CTX,
        cells=N_CTX * sequences,
        max_sequences=sequences,
        max_batch_tokens=64,
        invariant=invariant,
    )
    engines = {}
    for layers in cuts:
        path = folder / f"{layers.start}-{layers.end}.gguf"
        if not path.exists():
            cut_slice(model, layers, path)
        engines[layers] = RecordingEngine(replace(config, slice_path=path), layers, NUM_LAYERS)
    yield engines
    for engine in engines.values():
        engine.close()


def _cluster(
    engines: Engines, config: DriverConfig, *, seed: int, faults: NetworkFaults | None = None
) -> VirtualCluster:
    return VirtualCluster(
        seed=seed,
        ranges=list(engines),
        make_engine=engines.__getitem__,
        vocabulary=VOCABULARY,
        n_ctx=N_CTX,
        # Messages get lost here without a link being cut.
        config=replace(config, hop_deadline_s=1e6),
        faults=faults,
    )


def _requests(rng: random.Random, count: int, fill: tuple[float, float]) -> list[GenerateRequest]:
    """Requests that take from `fill[0]` to `fill[1]` of the context; half of them are greedy."""
    requests = []
    for number in range(count):
        tokens = int(N_CTX * rng.uniform(*fill))
        max_tokens = rng.randint(2, min(40, tokens - 1))
        prompt = tuple(rng.randrange(280) for _ in range(tokens - max_tokens))
        sampling = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=number)
        requests.append(GenerateRequest(f"r{number}", prompt, max_tokens, sampling))
    return requests


def _alone(
    model: Path, folder: Path, requests: Sequence[GenerateRequest], *, invariant: bool = True
) -> Drawn:
    """What each request draws from when it is computed by itself, prompt token by prompt token."""
    config = DriverConfig(chunk_tokens=1, steps_in_flight=1, invariant=invariant)
    whole = [LayerRange(0, NUM_LAYERS)]
    with _engines(model, whole, folder, sequences=1, invariant=invariant) as engines:
        for request in requests:
            cluster = _cluster(engines, config, seed=0)
            cluster.submit(request)
            cluster.run()
        return engines[whole[0]].drawn


def _together(
    engines: Engines,
    requests: Sequence[GenerateRequest],
    *,
    faults: NetworkFaults,
    over_s: float,
    invariant: bool = True,
) -> Drawn:
    config = DriverConfig(chunk_tokens=24, resend_after_s=0.5, max_resends=12, invariant=invariant)
    cluster = _cluster(engines, config, seed=1, faults=faults)
    rng = random.Random(2)
    for request in requests:
        cluster.submit(request, at_s=rng.uniform(0, over_s))
    cluster.run()
    assert all(isinstance(answer.end, Finished) for answer in cluster.answers)
    last = engines[max(engines, key=lambda layers: layers.end)]
    assert last.most_sequences > 1, "nothing was computed together"
    return last.drawn


def _differing(some: Drawn, others: Drawn) -> list[tuple[int, int]]:
    assert some.keys() >= others.keys()
    return sorted(key for key in others if some[key] != others[key])


@pytest.mark.parametrize(
    ("num_slices", "architecture", "weights"),
    [(2, "qwen3moe", "Q8_0"), (3, "gemma3", "F16"), (5, "llama", "F32")],
)
def test_sixteen_concurrent_requests_equal_their_solo_runs(
    num_slices: int, architecture: Architecture, weights: WeightType, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", architecture, num_layers=NUM_LAYERS, weights=weights)
    requests = _requests(random.Random(3), 16, (0.05, 0.5))
    alone = _alone(model, tmp_path, requests)
    with _engines(model, even_cuts(NUM_LAYERS, num_slices), tmp_path, sequences=16) as engines:
        together = _together(engines, requests, faults=FAULTS, over_s=0.2)
    assert _differing(together, alone) == []


@pytest.mark.parametrize("num_slices", [2, 3, 5])
def test_sessions_that_start_while_others_end_in_a_nearly_full_cache_change_nothing(
    num_slices: int, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=NUM_LAYERS, weights="F16")
    requests = _requests(random.Random(4), 24, (0.8, 1.0))
    alone = _alone(model, tmp_path, requests)
    with _engines(model, even_cuts(NUM_LAYERS, num_slices), tmp_path, sequences=6) as engines:
        together = _together(engines, requests, faults=FAULTS, over_s=2.0)
    assert _differing(together, alone) == []


def test_default_mode_does_not_promise_that(tmp_path: Path) -> None:
    # The proof that the tests above can fail.
    model = write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=NUM_LAYERS, weights="F16")
    requests = _requests(random.Random(3), 16, (0.05, 0.5))
    alone = _alone(model, tmp_path, requests, invariant=False)
    with _engines(model, even_cuts(NUM_LAYERS, 3), tmp_path, sequences=16, invariant=False) as engines:
        together = _together(engines, requests, faults=FAULTS, over_s=0.2, invariant=False)
    assert _differing(together, alone)
