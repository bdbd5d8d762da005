"""Real processes are killed while eight streams run in invariant mode: each goes on byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.kill_cluster import KillCluster, kill
from tests.support.serve_process import serve_process
from tests.support.sse_answer import StreamedAnswer, stream_answer
from tests.support.tiny_models import write_tiny_model

NUM_STREAMS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillCluster]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "qwen3", num_layers=6)
    with serve_process(str(model), "--invariant", "--spares", "1") as served:
        served.wait_until_up()
        yield KillCluster(served)


def body(number: int) -> dict[str, Any]:
    """Prompts of different lengths, every second one sampled."""
    prompt = [(number + 7 * position) % 250 + 3 for position in range(10 + 40 * number)]
    sampling = {"temperature": number % 2, "seed": number, "logprobs": 2}
    return {"model": "tiny", "prompt": prompt, "max_tokens": 100, "ignore_eos": True, **sampling}


def test_eight_streams_go_on_byte_for_byte_when_every_stage_is_killed_under_them(
    cluster: KillCluster,
) -> None:
    cluster.wait_until_whole()
    alone = [stream_answer(cluster.url, body(number)) for number in range(NUM_STREAMS)]
    gateway, pids = cluster.served.process.pid, cluster.owner_pids()
    victims = {1: pids[0], 7: pids[1], 50: pids[2]}

    def stream(number: int) -> StreamedAnswer:
        def on_text(num_texts: int) -> None:
            if number == 0 and num_texts in victims:
                kill(victims[num_texts])

        return stream_answer(cluster.url, body(number), on_text)

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        together = list(pool.map(stream, range(NUM_STREAMS)))

    assert together == alone
    assert len({answer.text for answer in alone}) == NUM_STREAMS
    assert [loss["end"] for loss in cluster.losses()] == ["replaced"] * 3
    assert all(loss["stall_s"] is not None for loss in cluster.losses())
    assert cluster.served.process.poll() is None
    assert cluster.served.process.pid == gateway
