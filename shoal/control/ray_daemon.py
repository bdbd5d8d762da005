"""Ray as a daemon of its own: started, found again after a crash, and ended without a trace.

On the head it is the cluster; on a machine that joins, a node of it. Owns the daemon's directory (logs,
sockets, session id, lock) and the cluster's token in it. Knows nothing of workers. Never uses `ray stop`,
which ends every Ray cluster on the machine.

Each daemon has one directory below the state root, locked for as long as its head lives. The
kernel drops the lock when the head dies in whatever way: an unlocked directory is a leftover.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shoal.control.daemon_processes import SESSION_FILE, end_daemon_processes
from shoal.core.errors import ClusterError

OBJECT_STORE_BYTES = 80_000_000  # nothing large goes through Ray; 75 MiB is the least it takes
LOOPBACK = "127.0.0.1"
START_DEADLINE_S = 90.0
LONGEST_DIRECTORY = 43  # unix socket paths end at 107 bytes, and Ray appends 63 of its own
TOKEN_FILE = "auth_token"
LOCK_FILE = "lock"
LOG_FILE = "ray.log"

# sh writes the id of the session that it leads before Ray exists, so that there is no moment in
# which a kill -9 of the head leaves processes that nobody can find.
_RECORD_SESSION_THEN_RUN = 'echo $$ > "$0" && exec "$@"'


def default_state_root() -> Path:
    """Where daemons of this user live: short enough for sockets, readable by nobody else."""
    root = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    # 9 = "/" and the eight characters of a daemon's own directory.
    return root if len(str(root)) + 9 <= LONGEST_DIRECTORY else Path("/tmp") / f"shoal-{os.getuid()}"


class RayDaemon:
    """One daemon. `prepare_ray_daemon` makes it, `start` runs it; `end` it after any failure of that.

    Two steps, so that whoever must end it holds it before there is anything to end.
    """

    def __init__(self, directory: Path, lock_fd: int) -> None:
        self.directory = directory
        self._token_path = directory / TOKEN_FILE
        self._lock_fd: int | None = lock_fd
        self._node_address = LOOPBACK

    @property
    def log_path(self) -> Path:
        return self.directory / LOG_FILE

    @property
    def worker_logs(self) -> Path:
        """The directory in which Ray keeps what workers write to stdout and stderr."""
        return self.directory / "session_latest" / "logs"

    @property
    def address(self) -> str:
        """`host:port` that clients of this daemon connect to."""
        return (self.directory / "ray_current_cluster").read_text().strip()

    @property
    def token(self) -> str:
        """What whoever takes part in this cluster must know."""
        return self._token_path.read_text()

    @property
    def client_environment(self) -> dict[str, str]:
        """What a process must have in its environment before it imports ray."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token_path),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Off means: this node's address is 127.0.0.1 and every port binds there. Ray
            # otherwise replaces a loopback address by one that the LAN can reach.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if self._node_address == LOOPBACK else "1",
            # Membership has compared major and minor already; Ray would refuse other patch levels.
            "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
            # Ray's C++ part would take SIGTERM from us and abort.
            "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
        }

    def start(self, *, worker_threads: int, address: str = LOOPBACK) -> None:
        """Begin a cluster, with a token of its own. worker_threads: OMP_NUM_THREADS of workers.
        address: this machine's, as others reach it; by default nobody does.

        Raises ClusterError naming the log when Ray does not come up.
        """
        self._node_address = address
        _write_secret(self._token_path, secrets.token_hex(32))
        _run_ray_start(self, worker_threads, _head_command(self.directory, address))

    def join(self, *, head: str, token: str, address: str, resource: str, worker_threads: int) -> None:
        """Take part in the cluster at `head`. address: this machine's, as the head reaches it.
        resource: a Ray resource that this node alone offers, once.

        Raises ClusterError naming the log when Ray does not come up.
        """
        self._node_address = address
        _write_secret(self._token_path, token)
        _run_ray_start(self, worker_threads, _node_command(self.directory, head, address, resource))

    def end(self, *, keep_logs: bool = False) -> None:
        """Kill all its processes, wait for them, remove its directory. Idempotent.

        keep_logs: leave the directory for a person to read; the next start removes it.
        Raises ClusterError when a process survives.
        """
        if self._lock_fd is None:
            return
        end_daemon_processes(self.directory)
        if not keep_logs:
            shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = None


def prepare_ray_daemon(state_root: Path) -> RayDaemon:
    """A daemon's directory and lock, after ending the daemons that crashes left behind.

    state_root: made if absent, mode 0700.
    Raises ClusterError when `state_root` cannot be used or a leftover cannot be ended.
    """
    make_state_root(state_root)
    with _locked_root(state_root):
        _end_leftover_daemons(state_root)
        directory = state_root / secrets.token_hex(4)
        directory.mkdir(mode=0o700)
        lock_fd = os.open(directory / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return RayDaemon(directory, lock_fd)


def _end_leftover_daemons(state_root: Path) -> None:
    """End the daemons whose head is gone, and remove their directories. Needs the root's lock."""
    directories = [path for path in state_root.iterdir() if path.is_dir()]
    leftovers = [directory for directory in directories if not _is_locked(directory / LOCK_FILE)]
    for directory in leftovers:
        end_daemon_processes(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _run_ray_start(daemon: RayDaemon, worker_threads: int, ray_start: list[str]) -> None:
    command = ["/bin/sh", "-c", _RECORD_SESSION_THEN_RUN, str(daemon.directory / SESSION_FILE), *ray_start]
    with daemon.log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_daemon_environment(daemon.client_environment, worker_threads),
            cwd=daemon.directory,  # not the user's: a folder called ray there would be imported
            start_new_session=True,  # keeps Ctrl-C in the terminal away from it, and names it
        )
    try:
        status = process.wait(timeout=START_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise _start_error(daemon, f"it did not come up within {START_DEADLINE_S:.0f} s") from None
    except BaseException:
        process.kill()
        process.wait()
        raise
    if status != 0 or not (daemon.directory / "ray_current_cluster").exists():
        raise _start_error(daemon, f"`ray start` ended with status {status}")


def _head_command(directory: Path, address: str) -> list[str]:
    return [
        *_ray_start_command(directory, address),
        "--head",
        "--port=0",
        "--include-dashboard=false",
        "--no-monitor",
    ]


def _node_command(directory: Path, head: str, address: str, resource: str) -> list[str]:
    command = _ray_start_command(directory, address)
    return [*command, f"--address={head}", f"--resources={json.dumps({resource: 1})}"]


def _ray_start_command(directory: Path, address: str) -> list[str]:
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start",
        f"--node-ip-address={address}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--temp-dir={directory}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        "--num-cpus=1",  # workers ask for none; memory and threads are placed by Shoal itself
        "--num-gpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
    ]  # fmt: skip


def _daemon_environment(client_environment: dict[str, str], worker_threads: int) -> dict[str, str]:
    # A RAY_* variable of the user's own could point this daemon at another cluster.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return (
        inherited
        | client_environment
        | {
            "OMP_NUM_THREADS": str(worker_threads),
            "GLIBC_TUNABLES": _with_huge_pages(inherited.get("GLIBC_TUNABLES")),
            "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "0",  # a worker's crash leaves its stack in the log
            # Ray's own default is 15: whatever else runs beside a stage would come first, gateway included.
            "RAY_worker_niceness": "0",
            "RAY_enable_worker_prestart": "0",  # idle Python processes of 80 MB each
            "RAY_enable_metrics_collection": "0",
            # Ray would kill a worker of its choice at 95 % of memory; Shoal checks before it places.
            "RAY_memory_monitor_refresh_ms": "0",
        }
    )


def _with_huge_pages(tunables: str | None) -> str:
    """Many systems give huge pages only to those who ask, which llama.cpp does not: weights in them are
    read 8 % faster (docs/PERFORMANCE.md). glibc asks for it from 2.35 on; others ignore this."""
    return ":".join(filter(None, (tunables, "glibc.malloc.hugetlb=1")))


def _start_error(daemon: RayDaemon, cause: str) -> ClusterError:
    lines = daemon.log_path.read_text(errors="replace").strip().splitlines()
    last = f" Its last line: {lines[-1].strip()}" if lines else ""
    return ClusterError(
        f"Ray could not be started: {cause}.{last}", next_step=f"Read {daemon.log_path} for the cause."
    )


def make_state_root(state_root: Path) -> None:
    """Make the directory for state of this user's, if it is absent. Raises ClusterError where others
    can read it, or where it is too long."""
    if len(str(state_root)) + 9 > LONGEST_DIRECTORY:
        raise ClusterError(
            f"The state directory {state_root} is too long for Ray's sockets.",
            next_step=f"Use one of at most {LONGEST_DIRECTORY - 9} characters.",
        )
    state_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = state_root.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(
            f"The state directory {state_root} belongs to, or can be read by, somebody else.",
            next_step="Remove it, or make it yours with mode 0700.",
        )


def _write_secret(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


@contextlib.contextmanager
def _locked_root(state_root: Path) -> Iterator[None]:
    """Keep two starts apart: a directory without a lock must not be a start that has just begun."""
    fd = os.open(state_root / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_locked(lock_path: Path) -> bool:
    try:
        fd = os.open(lock_path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
