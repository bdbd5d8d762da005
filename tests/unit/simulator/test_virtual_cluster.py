"""The cores in virtual time: a run replays exactly, and notices what is left over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.errors import ContextLengthExceeded
from shoal.core.placement import DRIVER, WorkerId
from shoal.core.sequence import Finished, FinishReason, GenerateRequest, SamplingParams, SessionId
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.simulator.virtual_cluster import FAULT_CONFIG, VirtualCluster
from shoal.simulator.virtual_network import NetworkFaults
from shoal.wire.messages import Close
from tests.support.digest_reference import NumberVocabulary, digest_answer

N_VOCAB = 997
VOCABULARY = NumberVocabulary()
BAD_NETWORK = NetworkFaults(jitter_s=0.01, loss=0.1, duplication=0.2)


def _cluster(seed: int, faults: NetworkFaults | None = None) -> VirtualCluster:
    return VirtualCluster(
        seed=seed,
        ranges=[LayerRange(n, n + 1) for n in range(3)],
        make_engine=lambda layers: DigestEngine(layers, 3, n_vocab=N_VOCAB),
        vocabulary=VOCABULARY,
        n_ctx=100,
        faults=faults,
        # Here messages get lost without a link being cut.
        config=replace(FAULT_CONFIG, hop_deadline_s=1e6),
    )


def _request(number: int, max_tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(f"r{number}", (number, 2, 3), max_tokens, SamplingParams(seed=number))


def _history(seed: int) -> tuple[float, list[str]]:
    cluster = _cluster(seed, BAD_NETWORK)
    for number in range(4):
        cluster.submit(_request(number), at_s=0.1 * number)
    cluster.run()
    return cluster.env.now, [answer.text for answer in cluster.answers]


def test_a_run_replays_exactly_from_its_seed() -> None:
    assert _history(5) == _history(5)


def test_answers_are_those_of_the_unbroken_run_and_nothing_is_left() -> None:
    cluster = _cluster(1, BAD_NETWORK)
    answer = cluster.submit(_request(1))
    cluster.run()
    expected = digest_answer(answer.request, num_layers=3, n_vocab=N_VOCAB, vocabulary=VOCABULARY)
    assert isinstance(answer.end, Finished)
    assert (answer.text, answer.end.reason) == expected == (answer.text, FinishReason.LENGTH)
    assert cluster.is_empty()


def test_compute_takes_virtual_time() -> None:
    cluster = VirtualCluster(
        seed=1,
        ranges=[LayerRange(n, n + 1) for n in range(3)],
        make_engine=lambda layers: DigestEngine(layers, 3, n_vocab=N_VOCAB),
        vocabulary=VOCABULARY,
        n_ctx=100,
        compute_s=lambda worker, chunks: 0.1,
    )
    cluster.submit(_request(1))
    cluster.run()
    assert cluster.env.now >= 3 * 20 * 0.1  # three stages for each of 20 tokens


def test_a_client_that_leaves_is_no_longer_awaited() -> None:
    cluster = _cluster(1)
    answer = cluster.submit(_request(1, max_tokens=90), cancel_after_s=0.1)
    cluster.run()
    assert (answer.cancelled, answer.end, cluster.is_empty()) == (True, None, True)


def test_a_run_ends_only_when_the_batch_of_a_client_that_left_is_done_and_its_cells_are_free() -> None:
    engine = DigestEngine(LayerRange(0, 1), 1, n_vocab=N_VOCAB)
    cluster = VirtualCluster(
        seed=1,
        ranges=[LayerRange(0, 1)],
        make_engine=lambda layers: engine,
        vocabulary=VOCABULARY,
        n_ctx=100,
        compute_s=lambda worker, chunks: 3.0,
    )
    cluster.submit(_request(1), cancel_after_s=0.1)
    cluster.run()
    assert engine.cells_used == 0


def test_a_request_that_is_refused_ends_with_the_error() -> None:
    cluster = _cluster(1)
    answer = cluster.submit(_request(1, max_tokens=98))
    cluster.run()
    assert isinstance(answer.end, ContextLengthExceeded)


def test_a_run_that_never_ends_is_an_error_that_says_what_is_left() -> None:
    cluster = _cluster(1, NetworkFaults(loss=1.0))
    cluster.submit(_request(1))
    with pytest.raises(TimeoutError, match=r"unended \['r1'\]"):
        cluster.run(limit_s=0.9)


def test_what_is_left_over_anywhere_is_not_empty() -> None:
    cluster = _cluster(1)
    cluster.submit(_request(1))
    cluster.run()
    assert cluster.is_empty()
    cluster.head.driver.admission.try_reserve(7, 1)
    assert not cluster.is_empty()
    cluster.head.driver.admission.release(7)
    cluster.workers[1].core._sessions.find_or_add(9, cluster.workers[0].core.worker)
    assert not cluster.is_empty()


def test_an_event_behind_the_end_of_an_answer_is_caught() -> None:
    cluster = _cluster(1)
    answer = cluster.submit(_request(1))
    cluster.run()
    with pytest.raises(AssertionError, match="after its end"):
        cluster.head._hand_over(answer, Finished(FinishReason.STOP, 1, 1))


@pytest.mark.parametrize(("loss", "duplication", "copies"), [(0.0, 0.0, 1), (1.0, 0.0, 0), (0.0, 1.0, 2)])
def test_the_network_loses_and_repeats_as_told(loss: float, duplication: float, copies: int) -> None:
    cluster = _cluster(1, NetworkFaults(loss=loss, duplication=duplication))
    came: list[object] = []
    cluster.network.attach(WorkerId("here"), lambda message, rows: came.append(message))
    cluster.network.send(DRIVER, WorkerId("here"), Close((SessionId(1),)), None)
    cluster.env.run(until=0.5)
    assert came == [Close((1,))] * copies
