"""A head that is killed and started again: machines come back by themselves, and nothing old is left."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.support.joined_lan import Head, join
from tests.support.lan import lan, why_no_lan
from tests.support.processes import wait_until
from tests.support.tiny_models import write_tiny_model

REASON = why_no_lan()


@pytest.mark.slow
@pytest.mark.timeout(300)  # Ray comes up three times, on a busy machine slowly
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_head_that_is_killed_is_started_again_and_its_machines_join_by_themselves(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "qwen2")
    with lan(2) as (head_host, host):
        head = Head(head_host)
        token = head_host.run("token", "create")[1].split()[0]
        serve = (
            *("serve", str(model), "--nodes", "1", "--wait-for", "1"),
            *("--join-listen", head_host.address, "--threads", "1", "--ctx", "2048"),
        )
        killed = head_host.start(*serve)
        killed.wait_for("End it: Ctrl-C")
        machine = join(host, head_host, token, "a")
        wait_until(head.is_ready, deadline_s=60, what="both stages to have an owner")
        text = head.chat()
        workers = {worker.pid for worker in head.status().workers}

        killed.process.kill()
        killed.process.wait()
        wait_until(lambda: len(host.pids()) == 1, deadline_s=30, what="the machine to end what it carries")
        left = {pid for pid in head_host.pids() if pid not in workers}
        started = head_host.start(*serve)
        started.wait_for("End it: Ctrl-C")
        machine.wait_for("Joined as a", times=2)
        wait_until(head.is_ready, deadline_s=60, what="ready without anybody's help")

        assert head.chat() == text
        assert not any(psutil.pid_exists(pid) for pid in workers | left)
        assert head.carriers() == ["local-0", "a"]
