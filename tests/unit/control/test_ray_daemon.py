"""Real Ray daemons: reachable from this machine with the token only, and ended without a trace."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.control import ray_daemon
from shoal.control.daemon_processes import daemon_processes
from shoal.control.ray_daemon import RayDaemon, prepare_ray_daemon
from shoal.core.errors import ClusterError
from tests.support.processes import processes_using

START_AND_DIE = """
import os, sys
from pathlib import Path
from shoal.control.ray_daemon import prepare_ray_daemon
daemon = prepare_ray_daemon(Path(sys.argv[1]))
daemon.start(worker_threads=1)
os._exit(9)
"""

CONNECT = """
import logging, ray
ray.init(address=%r, log_to_driver=False, logging_level=logging.CRITICAL)
"""


@pytest.fixture
def state_root() -> Iterator[Path]:
    """Not pytest's own: its paths are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def daemon(state_root: Path) -> Iterator[RayDaemon]:
    prepared = prepare_ray_daemon(state_root)
    try:
        prepared.start(worker_threads=1)
        yield prepared
    finally:
        prepared.end()


def connect(daemon: RayDaemon, token_path: Path) -> int:
    environment = os.environ | daemon.client_environment
    environment |= {"RAY_AUTH_TOKEN_PATH": str(token_path), "RAY_NUM_REDIS_GET_RETRIES": "1"}
    command = [sys.executable, "-c", CONNECT % daemon.address]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode


def test_a_daemon_listens_on_loopback_and_wants_the_token(daemon: RayDaemon, tmp_path: Path) -> None:
    connections = [c for process in daemon_processes(daemon.directory) for c in process.net_connections()]
    hosts = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert hosts
    assert hosts <= {"127.0.0.1", "::ffff:127.0.0.1"}

    token = Path(daemon.client_environment["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    assert connect(daemon, token) == 0
    assert connect(daemon, wrong) != 0


def test_ending_one_daemon_leaves_no_process_of_it_and_another_alone(
    daemon: RayDaemon, state_root: Path
) -> None:
    other = prepare_ray_daemon(state_root)
    try:
        other.start(worker_threads=1)
        num_others = len(daemon_processes(other.directory))
        assert daemon_processes(daemon.directory)

        daemon.end()

        assert processes_using(daemon.directory) == []
        assert not daemon.directory.exists()
        assert len(daemon_processes(other.directory)) == num_others
        daemon.end()
    finally:
        other.end()
    assert processes_using(state_root) == []


def test_its_processes_ask_for_huge_pages_beside_what_the_user_has_set(
    state_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=0")
    daemon = prepare_ray_daemon(state_root)
    try:
        daemon.start(worker_threads=1)
        pids = [process.pid for process in daemon_processes(daemon.directory)]
        # Not by the variable's name: glibc parts the settings with zeros, in place.
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
        asking = [text for text in environments if b"glibc.malloc.hugetlb=1" in text]
        assert asking
        assert all(b"glibc.malloc.perturb=0" in text for text in asking)
    finally:
        daemon.end()


def test_a_daemon_whose_head_was_killed_is_ended_by_the_next_start(state_root: Path) -> None:
    command = [sys.executable, "-c", START_AND_DIE, str(state_root)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 9
    assert processes_using(state_root)

    following = prepare_ray_daemon(state_root)
    try:
        assert processes_using(state_root) == []
        assert [path for path in state_root.iterdir() if path.is_dir()] == [following.directory]
    finally:
        following.end()


def test_a_failed_start_says_where_to_read_and_leaves_nothing_running(
    state_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ray_daemon, "_ray_start_command", lambda *_: ["/bin/sh", "-c", "echo no luck; exit 3"]
    )
    daemon = prepare_ray_daemon(state_root)
    try:
        with pytest.raises(ClusterError, match=r"status 3\. Its last line: no luck Read .*ray\.log"):
            daemon.start(worker_threads=1)
    finally:
        daemon.end()
    assert processes_using(state_root) == []


def test_a_state_directory_that_others_can_read_is_refused(state_root: Path) -> None:
    state_root.chmod(0o755)
    with pytest.raises(ClusterError, match="can be read by, somebody else"):
        prepare_ray_daemon(state_root)


def test_a_state_directory_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="too long for Ray's sockets"):
        prepare_ray_daemon(tmp_path / ("x" * 60))
