"""Links between real machines lose every packet, one way or both, and machines stand still: the text goes
on, nothing stale comes, and who returns is a new machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from shoal.core.status import LossStatus
from tests.support.joined_lan import Head, join
from tests.support.lan import Command, Host, lan, why_no_lan
from tests.support.processes import wait_until
from tests.support.tiny_models import write_tiny_model

REASON = why_no_lan()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(300),  # Ray nodes come up one after the other, on a busy machine slowly
]


@dataclass
class Joined:
    """Two machines that carry a stage each, and stand by for each other."""

    head: Head
    head_host: Host
    hosts: dict[str, Host]
    commands: dict[str, Command]
    token: str
    text: str = ""

    def owner(self, stage: int) -> str:
        return self.head.carriers()[stage]

    def wait_until_whole(self) -> None:
        """Until each stage has an owner and a standby on another machine."""

        def is_whole() -> bool:
            workers = self.head.status().workers
            places = {(worker.stage, worker.node) for worker in workers if worker.state != "lost"}
            return len(places) == 4 and self.head.is_ready()

        wait_until(is_whole, deadline_s=60, what="each machine to hold both stages")

    def losses(self) -> tuple[LossStatus, ...]:
        return self.head.status().losses

    def states(self, name: str) -> set[str]:
        """Of the workers on one machine."""
        return {worker.state for worker in self.head.status().workers if worker.node == name}

    def members(self) -> list[str]:
        """Machines that the head counts on."""
        return sorted(node.node for node in self.head.status().nodes)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "qwen2")
    with lan(3) as (head_host, a_host, b_host):
        head = Head(head_host)
        token = head_host.run("token", "create")[1].split()[0]
        serve = head_host.start(
            *("serve", str(model), "--nodes", "0", "--wait-for", "2"),
            *("--join-listen", head_host.address, "--threads", "1", "--ctx", "2048"),
        )
        serve.wait_for("End it: Ctrl-C")
        hosts = {"a": a_host, "b": b_host}
        commands = {name: join(host, head_host, token, name) for name, host in hosts.items()}
        made = Joined(head, head_host, hosts, commands, token)
        made.wait_until_whole()
        made.text = head.chat()
        yield made
        assert serve.process.poll() is None, serve.output


@pytest.fixture
def whole(joined: Joined) -> Joined:
    joined.wait_until_whole()
    if len(set(joined.head.carriers())) == 1:  # both stages came to one machine: let each carry one again
        worker = next(w for w in joined.head.status().workers if w.role == "stage" and w.stage == 1)
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: len(set(joined.head.carriers())) == 2, deadline_s=30, what="two carriers")
        joined.wait_until_whole()
    return joined


@pytest.mark.parametrize("ways", ["one way", pytest.param("both ways", marks=pytest.mark.slow)])
def test_a_link_between_two_stages_that_loses_everything_changes_no_text(whole: Joined, ways: str) -> None:
    first, second = (whole.hosts[whole.owner(stage)] for stage in (0, 1))

    def cut() -> None:
        first.cut_to(second)
        if ways == "both ways":
            second.cut_to(first)

    before = whole.losses()
    text = whole.head.chat(cut)
    losses = whole.losses()[len(before) :]
    first.mend_to(second)
    second.mend_to(first)

    assert text == whole.text
    assert [loss.layer_start for loss in losses] == [3]
    assert "sends reaches it" in losses[0].cause


def test_a_machine_whose_packets_take_long_is_flagged_and_not_taken_for_dead(whole: Joined) -> None:
    name = whole.owner(1)
    before = whole.losses()
    metrics: list[str] = []

    def slow_down() -> None:
        with whole.hosts[name].slowed(0.3):
            wait_until(lambda: "delayed" in whole.states(name), deadline_s=30, what="the delay to show")
            metrics.extend(whole.head.get("/metrics").text.splitlines())

    assert whole.head.chat(slow_down) == whole.text
    assert whole.losses() == before
    flags = [line for line in metrics if f'node="{name}"' in line and 'why="pings"' in line]
    assert any(line.endswith(" 1.0") for line in flags), flags
    wait_until(lambda: "delayed" not in whole.states(name), deadline_s=30, what="the flag to go")


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["the head", "the stage"])
def test_a_link_between_the_head_and_a_stage_that_loses_one_way_changes_no_text(
    whole: Joined, deaf: str
) -> None:
    name = whole.owner(1)
    host, command = whole.hosts[name], whole.commands[name]
    sender, receiver = (host, whole.head_host) if deaf == "the head" else (whole.head_host, host)
    num_joined = command.output.count(f"Joined as {name}")

    text = whole.head.chat(lambda: sender.cut_to(receiver))
    sender.mend_to(receiver)

    assert text == whole.text
    command.wait_for(f"Joined as {name}", times=num_joined + 1)
    assert whole.members() == ["a", "b"]


def test_a_machine_that_stood_still_and_was_replaced_says_nothing_stale_and_comes_back_as_a_new_one(
    whole: Joined,
) -> None:
    name = whole.owner(1)
    host, command = whole.hosts[name], whole.commands[name]
    ghosts = {worker.worker: worker.pid for worker in whole.head.status().workers if worker.node == name}
    num_joined = command.output.count(f"Joined as {name}")

    text = whole.head.chat(lambda: host.freeze())
    assert text == whole.text
    thawed = threading.Timer(0.0, host.thaw)
    again = whole.head.chat(thawed.start)  # it comes back to life in the middle of the next answer

    assert again == whole.text
    command.wait_for(f"Joined as {name}", times=num_joined + 1)
    wait_until(
        lambda: not set(ghosts.values()) & set(host.pids()), deadline_s=30, what="its old workers to end"
    )
    whole.wait_until_whole()
    assert whole.members() == ["a", "b"]
    assert not set(ghosts) & {worker.worker for worker in whole.head.status().workers}


@pytest.mark.slow
def test_ten_quick_restarts_of_a_machine_leave_no_ghosts(whole: Joined) -> None:
    name = whole.owner(1)
    host = whole.hosts[name]
    for _ in range(10):
        whole.commands[name].process.kill()
        whole.commands[name] = join(host, whole.head_host, whole.token, name)
        whole.commands[name].wait_for(f"Joined as {name}")
        assert whole.members() == ["a", "b"]
    whole.wait_until_whole()
    workers = [worker for worker in whole.head.status().workers if worker.node == name]
    assert len(workers) == 2
    assert whole.head.chat() == whole.text
    mine = {pid for pid in host.pids() if "WorkerAgent" in " ".join(psutil.Process(pid).cmdline())}
    assert mine == {worker.pid for worker in workers}
