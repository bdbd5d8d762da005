"""`shoal serve` from the command line to its end: it answers, replaces a worker, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import processes_using, wait_until
from tests.support.serve_process import serve_process
from tests.support.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_model(path, "qwen2")
    return path


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        yield Path(name)


def test_serve_answers_then_replaces_a_lost_worker_then_ends_on_sigterm(model: Path) -> None:
    with serve_process(str(model), "--engine", "digest") as served:
        served.wait_until_up()
        assert served.ready_status() == 200
        before = served.chat(max_tokens=5, seed=3)
        assert before.status_code == 200
        assert before.json()["usage"]["completion_tokens"] == 5
        pids = served.stage_pids()
        assert len(set(pids)) == 3

        os.kill(pids[1], signal.SIGKILL)

        wait_until(
            lambda: [loss.end for loss in served.status().losses] == ["replaced"],
            deadline_s=30,
            what="the lost stage to be replaced",
        )
        wait_until(lambda: served.ready_status() == 200, deadline_s=30, what="ready again")
        after = served.chat(max_tokens=5, seed=3)
        assert after.status_code == 200
        assert after.json()["choices"] == before.json()["choices"]
        status = served.status()
        (loss,) = status.losses
        assert (loss.node, loss.layer_start, loss.layer_end) == ("local-1", 2, 4)
        assert (status.epoch, status.missing_layers) == (2, ())
        assert served.stage_pids()[::2] == pids[::2]
        assert pids[1] not in served.stage_pids()
        assert "with layers [2, 4)" in served.output

        assert served.stop() == 0
        assert served.leftovers() == []


def test_llama_workers_answer_and_a_killed_serve_is_cleared_up_by_the_next_which_ends_on_ctrl_c(
    model: Path, short_folder: Path
) -> None:
    home, state_root = short_folder / "home", short_folder
    with serve_process(str(model), "--nodes", "2", home=home, state_root=state_root) as served:
        served.wait_until_up()
        first, second = (served.chat(max_tokens=8, temperature=0).json() for _ in range(2))
        assert first["usage"]["completion_tokens"] == 8
        assert first["choices"] == second["choices"]
        served.process.kill()
        served.process.wait()
        assert processes_using(state_root), "workers outlive a killed head"

    with serve_process(str(model), "--cuts", "4", home=home, state_root=state_root) as served:
        served.wait_for("Loading slices")
        assert len([path for path in (state_root / f"shoal-{os.getuid()}").iterdir() if path.is_dir()]) == 1
        assert served.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert served.leftovers() == []


def test_sigterm_while_ray_starts_leaves_nothing(model: Path) -> None:
    with serve_process(str(model)) as served:
        served.wait_for("Starting Ray")
        wait_until(lambda: len(processes_using(served.state_root)) > 1, deadline_s=20, what="Ray to begin")
        assert served.stop() == 128 + signal.SIGTERM
        assert served.leftovers() == []


def refusal(*arguments: str) -> str:
    """What a serve that refuses to start prints, in one line."""
    with serve_process(*arguments) as served:
        assert served.process.wait(timeout=30) == 2, served.output
        assert "Traceback" not in served.output
        assert served.leftovers() == []
        return " ".join(served.output.split())


def test_a_busy_port_is_refused_before_any_work(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refusal(str(model), "--listen", address)
    assert "in use" in said
    assert "Cutting" not in said


def test_a_damaged_file_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(model.read_bytes()[:-5000])
    assert str(damaged) in refusal(str(damaged))


def test_more_nodes_than_layers_is_refused_with_the_number_that_works(model: Path) -> None:
    assert "Use --nodes 6 or fewer" in refusal(str(model), "--nodes", "7")


def test_an_address_beyond_this_machine_is_refused_without_the_flag(model: Path) -> None:
    assert "--allow-remote" in refusal(str(model), "--listen", "0.0.0.0:0")
