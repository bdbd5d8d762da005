"""Find and end every process of one Ray daemon, and of no other.

A daemon is started as the leader of its own session, writes that session's id into its
directory, and all that Ray starts stays in that session. The id alone could be somebody else's by now
(ids are reused once a session is empty), so at least one member must also be seen to work in the
daemon's directory. Process titles and environments are no help: Ray overwrites both.
Linux only, as Ray's clusters are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from shoal.core.errors import ClusterError

SESSION_FILE = "session_id"
POLL_S = 0.02


def daemon_processes(directory: Path) -> list[psutil.Process]:
    """The live processes of the daemon that `directory` belongs to, zombies left out."""
    session_id = _read_session_id(directory)
    if session_id is None:
        return []
    members = [process for process in psutil.process_iter() if _is_live_member(process, session_id)]
    return members if any(_works_in(process, directory) for process in members) else []


def end_daemon_processes(directory: Path, *, deadline_s: float = 5.0) -> None:
    """Kill the daemon of `directory` and wait until none of its processes is left.

    Killing outright is safe: nothing they hold outlives them but the directory, and a polite
    end takes Ray up to 16 s.
    Raises ClusterError when a process is still there after `deadline_s`.
    """
    session_id = _read_session_id(directory)
    if session_id is None or not daemon_processes(directory):
        return
    # From here on every member of the session is the daemon's: one that a dying process has
    # just started would not be seen to work in the directory, so each round lists them anew.
    give_up_at_s = time.monotonic() + deadline_s
    while remaining := [process for process in psutil.process_iter() if _is_live_member(process, session_id)]:
        if time.monotonic() > give_up_at_s:
            raise _survivors_error(directory, remaining, deadline_s)
        for process in remaining:
            _kill(process)
        time.sleep(POLL_S)


def end_member(directory: Path, pid: int) -> bool:
    """Kill one process of the daemon of `directory`; False where `pid` is none of them."""
    member = next((process for process in daemon_processes(directory) if process.pid == pid), None)
    if member is None:
        return False
    _kill(member)
    return True


def _survivors_error(directory: Path, survivors: list[psutil.Process], deadline_s: float) -> ClusterError:
    pids = " ".join(str(process.pid) for process in survivors)
    return ClusterError(
        f"Processes {pids} of the Ray daemon in {directory} did not end within {deadline_s:.0f} s.",
        next_step=f"End them yourself: kill -9 {pids}",
    )


def _read_session_id(directory: Path) -> int | None:
    try:
        return int((directory / SESSION_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _is_live_member(process: psutil.Process, session_id: int) -> bool:
    try:
        return os.getsid(process.pid) == session_id and _is_running(process)
    except (ProcessLookupError, PermissionError):
        return False


def _is_running(process: psutil.Process) -> bool:
    # A container's first process often does not reap: a dead child stays as a zombie for ever.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _works_in(process: psutil.Process, directory: Path) -> bool:
    """Whether the process was started for `directory` or writes a file below it."""
    prefix = f"{directory}/"
    try:
        if any(prefix in argument for argument in process.cmdline()):
            return True
        return any(opened.path.startswith(prefix) for opened in process.open_files())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
