"""Seeded runs of the real driver, workers and recovery while machines are killed, freeze, are cut
off and come back. Every answer equals the unfaulted one, or ends with an explicit error where no
machine was left that could hold its layers. Replay one: SHOAL_FAULT_SEED=17 pytest ... -k one_seed"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable

import pytest

from shoal.core.errors import NodeLost, NotReady
from shoal.core.journal_room import least_session_bytes
from shoal.core.placement import DRIVER, NodeId
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import ROW_WIDTH, DigestEngine
from shoal.simulator.virtual_cluster import VirtualCluster
from shoal.simulator.virtual_network import NetworkFaults, Process
from tests.support.digest_reference import NumberVocabulary, digest_answer

N_VOCAB = 997
NUM_LAYERS = 12
VOCABULARY = NumberVocabulary(frozenset({7, 8, 9}))
SEEDS = int(os.environ.get("SHOAL_FAULT_SEEDS", "2000"))


def _engines(rng: random.Random) -> tuple[Callable[[LayerRange], DigestEngine], int]:
    """How engines are made, and what their workers may journal: plenty, or hardly anything."""
    cells = rng.choice([200, 400, 2000])
    max_sequences = rng.choice([2, 5, 16])
    batch_tokens = rng.choice([4, 4, 12, 32])
    least_bytes = max_sequences * least_session_bytes(4 * ROW_WIDTH, batch_tokens)
    journal_bytes = rng.choice([1 << 30, least_bytes // 2, least_bytes, 2 * least_bytes])
    mixes, trims = rng.random() < 0.7, rng.random() < 0.5

    def make_engine(layers: LayerRange) -> DigestEngine:
        return DigestEngine(
            layers,
            NUM_LAYERS,
            n_vocab=N_VOCAB,
            cells=cells,
            max_sequences=max_sequences,
            max_batch_tokens=batch_tokens,
            mixes_chunks=mixes,
            can_trim=trims,
        )

    return make_engine, journal_bytes


def _random_cluster(seed: int, rng: random.Random) -> VirtualCluster:
    num_stages = rng.randint(1, 9)
    cuts = sorted(rng.sample(range(1, NUM_LAYERS), num_stages - 1))
    make_engine, journal_bytes = _engines(rng)
    return VirtualCluster(
        seed=seed,
        ranges=[LayerRange(start, end) for start, end in itertools.pairwise([0, *cuts, NUM_LAYERS])],
        make_engine=make_engine,
        journal_bytes=journal_bytes,
        vocabulary=VOCABULARY,
        n_ctx=160,
        num_nodes=num_stages + rng.randint(0, 3),
        survive=rng.choice([0, 1, 1, 2]),
        workers_per_node=rng.choice([1, 2, 3]),
        load_s=rng.choice([0.1, 1.0, 5.0]),
        faults=NetworkFaults(
            delay_s=0.0005,
            jitter_s=rng.choice([0.0, 0.001, 0.01]),
            loss=rng.choice([0.0, 0.0, 0.002]),
            duplication=rng.choice([0.0, 0.0, 0.05]),
        ),
    )


class _Faults:
    """Breaks things at random moments, and mends what can be mended in the end."""

    def __init__(self, cluster: VirtualCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        for _ in range(rng.randint(1, 5)):
            fault = rng.choice(
                [self._kill, self._kill, self._freeze, self._cut, self._cut_hop, self._machine, self._leave]
            )
            cluster.env.process(self._later(fault))
        cluster.env.process(self._mend())

    def _later(self, fault: Callable[[], None]) -> Process:
        yield self._cluster.env.timeout(self._rng.uniform(0, 3))
        if self._cluster.head.live:
            fault()

    def _kill(self) -> None:
        self._cluster.kill(self._rng.choice(self._cluster.head.live))

    def _freeze(self) -> None:
        worker = self._rng.choice(self._cluster.head.live)
        worker.freeze()
        self._cluster.env.process(self._thaw_later(worker.thaw))

    def _thaw_later(self, thaw: Callable[[], None]) -> Process:
        yield self._cluster.env.timeout(self._rng.choice([0.3, 1.0, 4.0]))
        thaw()

    def _cut(self) -> None:
        worker = self._rng.choice(self._cluster.head.live).info.worker
        ways = self._rng.choice(
            [[(worker, DRIVER)], [(DRIVER, worker)], [(worker, DRIVER), (DRIVER, worker)]]
        )
        for sender, receiver in ways:
            self._cluster.network.cut(sender, receiver)

    def _cut_hop(self) -> None:
        placement = self._cluster.head.placement
        if placement is None or len(placement.stages) < 2:
            return
        one, other = self._rng.choice(list(itertools.pairwise(placement.stages)))
        self._cluster.network.cut(one.worker, other.worker)
        if self._rng.random() < 0.5:
            self._cluster.network.cut(other.worker, one.worker)

    def _machine(self) -> None:
        node = self._rng.choice(self._cluster.head.live).info.node
        self._cluster.head.node_left(node)
        for worker in [w for w in self._cluster.head.live if w.info.node == node]:
            self._cluster.kill(worker)
        if self._rng.random() < 0.5:
            self._cluster.env.process(self._return_later(node))

    def _leave(self) -> None:
        self._cluster.head.leave(self._rng.choice(self._cluster.head.live).info.node)

    def _return_later(self, node: NodeId) -> Process:
        yield self._cluster.env.timeout(self._rng.uniform(0.1, 4))
        self._cluster.head.node_joined(node)

    def _mend(self) -> Process:
        yield self._cluster.env.timeout(20)
        self._cluster.network.mend_all()


def _random_request(rng: random.Random, number: int) -> GenerateRequest:
    prompt = tuple(rng.randrange(N_VOCAB) for _ in range(rng.choice([1, 2, 5, 31, 33, 90])))
    sampling = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=rng.getrandbits(64))
    return GenerateRequest(f"r{number}", prompt, rng.choice([1, 8, 40]), sampling)


@pytest.mark.parametrize("block", range(10))
def test_every_answer_goes_on_or_ends_openly_whatever_the_machines_do(block: int) -> None:
    for seed in range(block, SEEDS, 10):
        try:
            run_seed(seed)
        except Exception as error:
            error.add_note(
                f"replay: SHOAL_FAULT_SEED={seed} pytest tests/fault/test_machine_faults.py -k one_seed"
            )
            raise


@pytest.mark.skipif("SHOAL_FAULT_SEED" not in os.environ, reason="set SHOAL_FAULT_SEED to replay a run")
def test_one_seed() -> None:
    run_seed(int(os.environ["SHOAL_FAULT_SEED"]))


def run_seed(seed: int) -> None:
    """One history. Raises where an answer or what is left over is not as promised."""
    rng = random.Random(seed)
    cluster = _random_cluster(seed, rng)
    for number in range(rng.choice([1, 3, 10])):
        cancel_after_s = rng.choice([None, None, None, rng.uniform(0, 2)])
        cluster.submit(_random_request(rng, number), at_s=rng.uniform(0, 2), cancel_after_s=cancel_after_s)
    _Faults(cluster, rng)
    cluster.run()
    for answer in cluster.answers:
        text, reason = digest_answer(
            answer.request, num_layers=NUM_LAYERS, n_vocab=N_VOCAB, vocabulary=VOCABULARY
        )
        name = f"seed {seed} {answer.request.request_id}"
        if answer.cancelled or not isinstance(answer.end, Finished):
            assert text.startswith(answer.text), name
            if not answer.cancelled:
                assert isinstance(answer.end, NodeLost | NotReady), f"{name}: {answer.end!r}"
                assert cluster.head.was_stranded, name
            continue
        assert (answer.text, answer.end.reason) == (text, reason), name
    for worker in cluster.head.live:
        assert isinstance(worker.engine, DigestEngine)
        assert worker.is_frozen or worker.engine.cells_used == 0, f"seed {seed}: cells are left"
