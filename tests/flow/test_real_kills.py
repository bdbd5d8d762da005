"""Real processes are killed and frozen while a real model answers: the stream goes on with the same
events, as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.kill_cluster import KillCluster, kill
from tests.support.processes import wait_until
from tests.support.serve_process import serve_process
from tests.support.sse_answer import StreamedAnswer, stream_answer
from tests.support.tiny_models import write_tiny_model

FIRST, MIDDLE, LAST = range(3)
LONG_PROMPT = [(7 * position) % 250 + 3 for position in range(1500)]
HOT, WARM, FRESH = "hot standby", "warm standby", "fresh worker"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillCluster]:
    """Three stages, each with a standby: one is fed every step, the others only hold the weights."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "qwen3", num_layers=6)
    with serve_process(str(model), "--spares", "1", "--survive", "1") as served:
        served.wait_until_up()
        yield KillCluster(served)


@pytest.fixture
def whole(cluster: KillCluster) -> Iterator[KillCluster]:
    cluster.wait_until_whole()
    yield cluster
    assert cluster.served.process.poll() is None, cluster.served.output


@pytest.fixture(scope="module")
def unbroken(cluster: KillCluster) -> StreamedAnswer:
    cluster.wait_until_whole()
    answer = stream_answer(cluster.url, body())
    assert_whole(answer)
    assert answer == stream_answer(cluster.url, body())
    return answer


@pytest.fixture(scope="module")
def unbroken_after_long_prompt(cluster: KillCluster) -> StreamedAnswer:
    cluster.wait_until_whole()
    return stream_answer(cluster.url, body(prompt=LONG_PROMPT, max_tokens=50))


def body(**fields: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": "The tide", "max_tokens": 300, "temperature": 0, "logprobs": 2}
    return {**asked, "ignore_eos": True, **fields}


def assert_whole(answer: StreamedAnswer) -> None:
    """All that was asked for, ended once."""
    assert answer.errors == []
    assert answer.is_done
    assert answer.usage is not None
    assert [choice["finish_reason"] for choice in answer.choices].count("length") == 1
    assert len(set(answer.text)) > 20, "a text of one token over and over would prove nothing"


def kill_at(cluster: KillCluster, kills: dict[int, int]) -> StreamedAnswer:
    """Stream the answer and kill stages' owners. kills: stage by the number of texts that came."""
    pids = cluster.owner_pids()

    def on_text(num_texts: int) -> None:
        if num_texts in kills:
            kill(pids[kills[num_texts]])

    return stream_answer(cluster.url, body(), on_text)


@pytest.mark.parametrize(
    ("first", "second", "third"), [(FIRST, MIDDLE, LAST), (MIDDLE, LAST, FIRST), (LAST, FIRST, MIDDLE)]
)
def test_three_owners_killed_in_one_answer_do_not_change_its_stream(
    whole: KillCluster, unbroken: StreamedAnswer, first: int, second: int, third: int
) -> None:
    gateway, before = whole.served.process.pid, whole.status()["epoch"]

    answer = kill_at(whole, {1: first, 7: second, 50: third})

    assert answer == unbroken
    losses = whole.losses()[-3:]
    assert [loss["end"] for loss in losses] == ["replaced"] * 3
    assert all(loss["stall_s"] is not None for loss in losses), "killed behind the end of the answer"
    assert whole.status()["epoch"] == before + 3
    assert whole.served.process.pid == gateway


@pytest.mark.parametrize("stage", [FIRST, MIDDLE, LAST])
def test_an_owner_killed_in_the_middle_of_a_prompt_does_not_change_the_answer(
    whole: KillCluster, unbroken_after_long_prompt: StreamedAnswer, stage: int
) -> None:
    pids = whole.owner_pids()
    upstream = min(stage, MIDDLE)
    steps_before = whole.steps_of(upstream)

    def kill_in_prompt() -> None:
        wait_until(lambda: whole.steps_of(upstream) > steps_before, deadline_s=10, what="a first chunk")
        kill(pids[stage])
        if stage != LAST:
            os.kill(pids[LAST], signal.SIGCONT)

    os.kill(pids[LAST], signal.SIGSTOP)  # so that no prompt can be over before the kill
    killer = threading.Thread(target=kill_in_prompt)
    killer.start()
    answer = stream_answer(whole.url, body(prompt=LONG_PROMPT, max_tokens=50))
    killer.join()

    assert answer == unbroken_after_long_prompt
    assert whole.losses()[-1]["layer_start"] == 2 * stage


@pytest.mark.parametrize("rung", [HOT, WARM, FRESH])
def test_each_rung_of_the_ladder_carries_the_answer_on(
    whole: KillCluster, unbroken: StreamedAnswer, rung: str
) -> None:
    holders = whole.holders()
    by_rung = {standby["role"]: [owner["pid"]] for owner, standby, *_ in holders.values()}
    by_rung[FRESH] = [worker["pid"] for worker in holders[MIDDLE]]
    victims = by_rung[rung]

    def on_text(num_texts: int) -> None:
        if num_texts == 7:
            for pid in reversed(victims):  # standbys first, or they take over meanwhile
                kill(pid)

    answer = stream_answer(whole.url, body(), on_text)

    assert answer == unbroken
    assert rung in [loss["rung"] for loss in whole.losses()[-len(victims) :]]


def test_a_frozen_worker_is_replaced_and_delivers_nothing_when_it_thaws(
    whole: KillCluster, unbroken: StreamedAnswer
) -> None:
    pid = whole.owner_pids()[MIDDLE]

    def on_text(num_texts: int) -> None:
        if num_texts == 7:
            os.kill(pid, signal.SIGSTOP)

    answer = stream_answer(whole.url, body(), on_text)

    assert answer == unbroken
    assert "no answer to pings" in whole.losses()[-1]["cause"]
    assert pid not in [worker["pid"] for worker in whole.status()["workers"]]


def test_a_pause_shorter_than_the_patience_is_no_death(whole: KillCluster, unbroken: StreamedAnswer) -> None:
    pid, before = whole.owner_pids()[MIDDLE], whole.losses()
    thaw = threading.Timer(0.5, lambda: os.kill(pid, signal.SIGCONT))

    def on_text(num_texts: int) -> None:
        if num_texts == 7:
            os.kill(pid, signal.SIGSTOP)
            thaw.start()

    answer = stream_answer(whole.url, body(), on_text)
    thaw.join()

    assert answer == unbroken
    assert whole.losses() == before


def test_with_nobody_left_each_stream_ends_with_one_error_until_the_slice_is_back(
    whole: KillCluster, unbroken: StreamedAnswer, tmp_path: Path
) -> None:
    [slice_file] = whole.served.home.rglob("*2-4*.gguf")
    shutil.move(slice_file, tmp_path / "slice")
    victims = [worker["pid"] for worker in whole.holders()[MIDDLE]]

    def on_text(num_texts: int) -> None:
        if num_texts == 7:
            for pid in reversed(victims):
                kill(pid)

    answer = stream_answer(whole.url, body(), on_text)

    assert [error["code"] for error in answer.errors] == ["node_lost"]
    assert not answer.is_done
    assert unbroken.text.startswith(answer.text)
    assert whole.served.ready_status() == 503
    refused = httpx.post(f"{whole.url}/v1/completions", json=body(), timeout=30)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0

    shutil.move(tmp_path / "slice", slice_file)
    wait_until(lambda: whole.served.ready_status() == 200, deadline_s=60, what="ready again by itself")
    assert stream_answer(whole.url, body()) == unbroken


def test_shoal_chaos_breaks_the_cluster_and_tells_what_it_saw(whole: KillCluster) -> None:
    command = [sys.executable, "-m", "shoal.cli", "chaos", "--yes", "--rounds", "2", "--base-url", whole.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert heading.split()[:2] == ["fault", "rung"]
    assert [row.split()[0] for row in rows] == ["kill", "stop"]
    assert all(row.endswith("right") for row in rows)
