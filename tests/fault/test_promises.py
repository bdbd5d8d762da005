"""What is promised when a machine goes, in the mode that people get by default."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from shoal.core.placement import WorkerId
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.engine.interface import Chunk, Computed, Rows
from shoal.simulator.virtual_cluster import VirtualCluster
from shoal.simulator.virtual_worker import VirtualWorker
from tests.support.digest_reference import NumberVocabulary

NUM_LAYERS = 9
RANGES = [LayerRange(0, 3), LayerRange(3, 6), LayerRange(6, 9)]


class CountingEngine(DigestEngine):
    """A digest engine that counts the tokens it computes, and whose low bits depend on chunk lengths."""

    def __init__(self, layers: LayerRange) -> None:
        super().__init__(
            layers, NUM_LAYERS, n_vocab=997, max_batch_tokens=32, shape_sensitive=True, can_trim=False
        )
        self.tokens_computed = 0

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        self.tokens_computed += sum(len(chunk.tokens) for chunk in chunks)
        return super().compute(chunks, rows)


def _cluster(*, num_nodes: int = 3, survive: int = 0, load_s: float = 1.0) -> VirtualCluster:
    return VirtualCluster(
        seed=1,
        ranges=RANGES,
        make_engine=CountingEngine,
        vocabulary=NumberVocabulary(),
        n_ctx=400,
        workers_per_node=2,
        num_nodes=num_nodes,
        survive=survive,
        load_s=load_s,
    )


def _request(number: int, *, prompt_tokens: int = 70, max_tokens: int = 60) -> GenerateRequest:
    rng = random.Random(number)
    prompt = tuple(rng.randrange(997) for _ in range(prompt_tokens))
    return GenerateRequest(f"r{number}", prompt, max_tokens, SamplingParams(temperature=0.0, seed=number))


def _stage(cluster: VirtualCluster, stage: int) -> VirtualWorker:
    assert cluster.head.placement is not None
    worker = cluster.head.placement.stages[stage].worker
    return next(w for w in cluster.head.live if w.info.worker == worker)


def _at(cluster: VirtualCluster, at_s: float, act: Callable[[], None]) -> None:
    cluster.env.timeout(at_s).callbacks.append(lambda _: act())


def _text(cluster: VirtualCluster, request: GenerateRequest) -> str:
    answer = cluster.submit(request, at_s=5.0)
    cluster.run()
    assert isinstance(answer.end, Finished)
    return answer.text


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(("num_nodes", "survive"), [(4, 1), (3, 1), (3, 0)])
@pytest.mark.parametrize("after_s", [0.01, 0.1, 0.5])
def test_a_stream_that_was_alone_keeps_its_text_even_where_batch_shapes_change_low_bits(
    stage: int, num_nodes: int, survive: int, after_s: float
) -> None:
    request = _request(stage)
    unbroken = _text(_cluster(), request)
    cluster = _cluster(num_nodes=num_nodes, survive=survive)
    _at(cluster, 5.0 + after_s, lambda: cluster.kill(_stage(cluster, stage)))
    assert _text(cluster, request) == unbroken
    assert cluster.head.stalls_s, "the kill came too late to be felt"


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_polite_leave_computes_no_token_again(stage: int) -> None:
    requests = [_request(number, max_tokens=150) for number in range(3)]
    cluster = _cluster(num_nodes=4, load_s=0.1)
    answers = [cluster.submit(request, at_s=5.0) for request in requests]
    leaving = _stage(cluster, stage)
    _at(cluster, 5.4, lambda: cluster.head.leave(leaving.info.node))
    cluster.run()
    assert all(isinstance(answer.end, Finished) for answer in answers)
    successor = _stage(cluster, stage)
    assert successor is not leaving
    total = sum(len(r.prompt_tokens) + r.max_tokens - 1 for r in requests)
    engines = [leaving.engine, successor.engine]
    computed = [engine.tokens_computed for engine in engines if isinstance(engine, CountingEngine)]
    # While sessions are on their way both compute the few steps that are fed; nothing else twice.
    assert total <= sum(computed) <= total + 5 * len(requests)
    assert 0 < computed[0] < total


def test_the_loss_of_a_hot_standby_is_not_felt() -> None:
    request = _request(7)
    unbroken = _text(_cluster(), request)
    cluster = _cluster(num_nodes=4, survive=1)

    def kill_standby() -> None:
        placement = cluster.head.placement
        assert placement is not None
        hot = next(standby.info.worker for standby in placement.standbys if standby.is_hot)
        cluster.kill(next(worker for worker in cluster.head.live if worker.info.worker == hot))

    _at(cluster, 5.2, kill_standby)
    assert _text(cluster, request) == unbroken
    assert cluster.head.stalls_s == []


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_hot_standby_takes_over_without_computing_anything_again(stage: int) -> None:
    request = _request(8)
    cluster = _cluster(num_nodes=6, survive=1)
    unbroken = _text(_cluster(), request)
    computed_before: list[int] = []

    def kill_the_fed_stage() -> None:
        placement = cluster.head.placement
        assert placement is not None
        (hot,) = placement.hot_standbys(RANGES[stage].start)
        computed_before.append(_computed(cluster, hot))
        cluster.kill(_stage(cluster, stage))

    _at(cluster, 5.3, kill_the_fed_stage)
    assert _text(cluster, request) == unbroken
    assert computed_before[0] > len(request.prompt_tokens), "it was not fed"
    successor = _stage(cluster, stage).info.worker
    assert _computed(cluster, successor) == len(request.prompt_tokens) + request.max_tokens - 1
    assert max(cluster.head.stalls_s) < 0.1


def _computed(cluster: VirtualCluster, worker: WorkerId) -> int:
    engine = next(w for w in cluster.workers if w.info.worker == worker).engine
    assert isinstance(engine, CountingEngine)
    return engine.tokens_computed
