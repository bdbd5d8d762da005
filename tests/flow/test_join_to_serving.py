"""Machines on a network of their own: they join, take a slice, serve, leave politely, and are lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.joined_lan import Head, join
from tests.support.lan import Host, lan, why_no_lan
from tests.support.processes import wait_until
from tests.support.tiny_models import write_tiny_model

REASON = why_no_lan()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_model(path, "qwen2")
    return path


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lan(3) as made:
        yield made


@pytest.mark.timeout(300)  # three Ray nodes come up one after the other, on a busy machine slowly
def test_machines_join_serve_leave_in_mid_answer_and_are_survived_when_their_cable_is_pulled(
    hosts: list[Host], model: Path
) -> None:
    head_host, a_host, b_host = hosts
    head = Head(head_host)
    token = head_host.run("token", "create")[1].split()[0]
    serve = head_host.start(
        *("serve", str(model), "--nodes", "0", "--wait-for", "2"),
        *("--join-listen", head_host.address, "--threads", "1", "--ctx", "2048"),
    )
    serve.wait_for("End it: Ctrl-C")
    assert "Layers [0, 3), [3, 6) have no live owner" in head.get("/health/ready").text

    a = join(a_host, head_host, token, "a")
    a.wait_for("Joined as a")
    wait_until(lambda: len(head.status().workers) == 1, deadline_s=30, what="a to load its slice")
    assert "[3, 6)" in head.get("/health/ready").text
    fetched = sorted(path.name for path in a_host.home.rglob("*.gguf"))
    assert [name.split("-v1-")[1] for name in fetched] == ["0-3.gguf", "embedding.gguf"]

    b = join(b_host, head_host, token, "b")
    wait_until(head.is_ready, deadline_s=30, what="ready without a restart")
    assert head.carriers() == ["a", "b"]
    wait_until(lambda: head.standbys() == {"a", "b"}, deadline_s=30, what="each to stand by for the other")
    whole = head.chat()

    assert head.chat(lambda: a.process.send_signal(signal.SIGTERM)) == whole
    assert a.process.wait(timeout=10) == 0
    assert "Nothing is left running here." in a.output
    assert a_host.pids() == []
    assert head.carriers() == ["b", "b"]
    assert head.status().losses == ()

    join(a_host, head_host, token, "a").wait_for("Joined as a")
    wait_until(
        lambda: sum(worker.node == "a" for worker in head.status().workers) == 2,
        deadline_s=30,
        what="a to stand by for both stages",
    )
    assert head.chat(b_host.cut) == whole
    assert head.carriers() == ["a", "a"]
    assert {loss.node for loss in head.status().losses} == {"b"}
    b_host.mend()
    b.wait_for("Joined as b", times=2)

    serve.process.send_signal(signal.SIGTERM)
    assert serve.process.wait(timeout=10) == 0
    b.wait_for("The head has ended.")
    for host in hosts:
        wait_until(lambda host=host: host.pids() == [], deadline_s=10, what="nothing to be left")  # type: ignore[misc]
