"""Invariant mode under load and losses: production's policy in virtual time, over engines that
really compute.

Every token of every request must come from the same bits of logits as when the request is alone on
an undivided model and its prompt is computed token by token: whatever else runs, wherever the model
is cut, though the network loses, repeats and reorders messages, and though machines go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from llama_cpp import llama_cpp

from shoal.core.config import DriverConfig, EngineConfig
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.core.specs import LayerRange
from shoal.model.slicing import cut_embedding, cut_slice
from shoal.simulator.virtual_cluster import FAULT_CONFIG, VirtualCluster
from shoal.simulator.virtual_network import NetworkFaults
from shoal.simulator.virtual_worker import VirtualWorker
from tests.support.digest_reference import NumberVocabulary
from tests.support.quantise import quantised
from tests.support.recording_engine import Drawn, RecordingEngine
from tests.support.slice_chain import even_cuts
from tests.support.tiny_models import Architecture, WeightType, write_tiny_model

NUM_LAYERS = 5
N_CTX = 249  # and seven cells for repetitions make 256, llama.cpp's step: there are no others
FAULTS = NetworkFaults(jitter_s=0.002, loss=0.02, duplication=0.02)


class Engines:
    """Makes engines of one model's slices, as machines load them, and remembers them all."""

    def __init__(self, model: Path, folder: Path, *, sequences: int, invariant: bool) -> None:
        self._model, self._folder = model, folder
        self._config = EngineConfig(
            kind="llama",
            slice_path=None,
            embedding_path=cut_embedding(model, folder / "embedding.gguf"),
            n_ctx=N_CTX,
            cells=N_CTX * sequences,
            max_sequences=sequences,
            max_batch_tokens=64,
            invariant=invariant,
        )
        self.made: list[RecordingEngine] = []

    def make(self, layers: LayerRange) -> RecordingEngine:
        path = self._folder / f"{layers.start}-{layers.end}.gguf"
        if not path.exists():
            cut_slice(self._model, layers, path)
        engine = RecordingEngine(replace(self._config, slice_path=path), layers, NUM_LAYERS)
        self.made.append(engine)
        return engine

    def drawn(self) -> Drawn:
        """What was drawn from, on any machine."""
        together: Drawn = {}
        for engine in self.made:
            for key, digests in engine.drawn.items():
                together.setdefault(key, set()).update(digests)
        return together


@contextmanager
def _engines(model: Path, folder: Path, *, sequences: int, invariant: bool = True) -> Iterator[Engines]:
    engines = Engines(model, folder, sequences=sequences, invariant=invariant)
    yield engines
    for engine in engines.made:
        engine.close()


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
    config = DriverConfig(chunk_tokens=1, least_chunk_tokens=1, steps_in_flight=1, invariant=invariant)
    with _engines(model, folder, sequences=1, invariant=invariant) as engines:
        cluster = _cluster(engines, 1, config)
        for request in requests:
            cluster.submit(request)
            cluster.run()
        return engines.drawn()


def _cluster(
    engines: Engines,
    num_slices: int,
    config: DriverConfig,
    *,
    faults: NetworkFaults | None = None,
    num_nodes: int | None = None,
    survive: int = 0,
) -> VirtualCluster:
    return VirtualCluster(
        seed=1,
        ranges=even_cuts(NUM_LAYERS, num_slices),
        make_engine=engines.make,
        vocabulary=NumberVocabulary(),
        n_ctx=N_CTX,
        config=config,
        faults=faults,
        num_nodes=num_nodes,
        survive=survive,
    )


def _under_load(*, invariant: bool = True) -> DriverConfig:
    return replace(FAULT_CONFIG, chunk_tokens=24, least_chunk_tokens=5, invariant=invariant)


def _run(
    engines: Engines, cluster: VirtualCluster, requests: Sequence[GenerateRequest], over_s: float
) -> Drawn:
    """Let the requests come within `over_s`; what they drew from, when all have ended."""
    rng = random.Random(2)
    for request in requests:
        cluster.submit(request, at_s=rng.uniform(0, over_s))
    cluster.run()
    assert all(isinstance(answer.end, Finished) for answer in cluster.answers)
    assert max(engine.most_sequences for engine in engines.made) > 1, "nothing was computed together"
    return engines.drawn()


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
    with _engines(model, tmp_path, sequences=16) as engines:
        cluster = _cluster(engines, num_slices, _under_load(), faults=FAULTS)
        assert _differing(_run(engines, cluster, requests, over_s=0.2), alone) == []


@pytest.mark.parametrize("num_slices", [2, 3, 5])
def test_sessions_that_start_while_others_end_in_a_nearly_full_cache_change_nothing(
    num_slices: int, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=NUM_LAYERS, weights="F16")
    requests = _requests(random.Random(4), 24, (0.8, 1.0))
    alone = _alone(model, tmp_path, requests)
    with _engines(model, tmp_path, sequences=6) as engines:
        cluster = _cluster(engines, num_slices, _under_load(), faults=FAULTS)
        assert _differing(_run(engines, cluster, requests, over_s=2.0), alone) == []


@pytest.mark.parametrize(
    ("stage", "num_nodes", "survive"), [(0, 4, 1), (1, 4, 1), (2, 4, 1), (1, 3, 1), (2, 3, 0)]
)
def test_machines_that_go_under_load_change_nothing(
    stage: int, num_nodes: int, survive: int, tmp_path: Path
) -> None:
    # K-quants: what is computed again of an answer takes other kernels than a prompt.
    whole = write_tiny_model(tmp_path / "whole.gguf", "qwen3", num_layers=NUM_LAYERS, n_embd=256)
    model = quantised(whole, tmp_path / "tiny.gguf", llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M)
    requests = _requests(random.Random(5), 16, (0.2, 0.6))
    alone = _alone(model, tmp_path, requests)
    with _engines(model, tmp_path, sequences=8) as engines:
        cluster = _cluster(engines, 3, _under_load(), num_nodes=num_nodes, survive=survive)
        _at(cluster, 0.3, lambda: cluster.kill(_stage(cluster, stage)))
        _at(cluster, 1.5, lambda: cluster.head.leave(_stage(cluster, stage).info.node))
        assert _differing(_run(engines, cluster, requests, over_s=0.8), alone) == []
        assert cluster.head.stalls_s, "nobody felt the loss"


def test_default_mode_does_not_promise_that(tmp_path: Path) -> None:
    # The proof that the tests above can fail.
    model = write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=NUM_LAYERS, weights="F16")
    requests = _requests(random.Random(3), 16, (0.05, 0.5))
    alone = _alone(model, tmp_path, requests, invariant=False)
    with _engines(model, tmp_path, sequences=16, invariant=False) as engines:
        cluster = _cluster(engines, 3, _under_load(invariant=False), faults=FAULTS)
        assert _differing(_run(engines, cluster, requests, over_s=0.2), alone)


def _stage(cluster: VirtualCluster, stage: int) -> VirtualWorker:
    assert cluster.head.placement is not None
    worker = cluster.head.placement.stages[stage].worker
    return next(w for w in cluster.head.live if w.info.worker == worker)


def _at(cluster: VirtualCluster, at_s: float, act: Callable[[], None]) -> None:
    cluster.env.timeout(at_s).callbacks.append(lambda _: act())
