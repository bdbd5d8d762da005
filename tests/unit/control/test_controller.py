"""The head's life where it ends early; the rest is in tests/flow/test_serve_lifecycle.py."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.control import ray_daemon
from shoal.control.controller import Controller
from shoal.control.start_plan import ServeConfig, StartPhase
from shoal.core.errors import ClusterError
from tests.support.processes import processes_using
from tests.support.tiny_models import write_tiny_model


class Interruption(BaseException):
    """What a signal raises, as far as the controller knows."""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[ServeConfig]:
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    # Pytest's own folder would be too long for sockets.
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        yield ServeConfig(model=str(model), home=tmp_path, state_root=Path(name))


def ignore(phase: StartPhase, num_done: int, num_total: int) -> None:
    pass


def test_a_cluster_that_fails_leaves_the_log_that_its_error_names(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ray_daemon, "_ray_start_command", lambda *_: ["/bin/sh", "-c", "echo no luck; exit 3"]
    )
    controller = Controller(config)
    with pytest.raises(ClusterError) as caught:
        controller.start(ignore)
    controller.stop()
    named = re.search(r"/tmp/\S+/ray\.log", str(caught.value))
    assert named is not None
    assert Path(named[0]).read_text() == "no luck\n"
    assert not controller.is_ready()
    assert processes_using(config.state_root) == []


@pytest.mark.parametrize("phase", [StartPhase.CUT, StartPhase.CLUSTER])
def test_a_start_that_is_interrupted_leaves_neither_files_nor_processes(
    config: ServeConfig, phase: StartPhase
) -> None:
    def interrupt(now: StartPhase, num_done: int, num_total: int) -> None:
        if now == phase:
            raise Interruption

    controller = Controller(config)
    with pytest.raises(Interruption):
        controller.start(interrupt)
    controller.stop()
    controller.stop()
    assert list(config.home.rglob("*.partial")) == []
    assert [path for path in config.state_root.iterdir() if path.is_dir()] == []
    assert processes_using(config.state_root) == []
