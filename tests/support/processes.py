"""Looking at processes that a test started, whatever they have renamed themselves to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def processes_using(directory: Path) -> list[str]:
    """Live processes but this one that were started for `directory` or have a file below it open."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            arguments = process.cmdline()
            paths = [opened.path for opened in process.open_files()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(str(directory) in text for text in arguments + paths):
            found.append(f"{process.pid} {' '.join(arguments)[:80]}")
    return found


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    """Return as soon as `condition` holds; fail the test naming `what` after `deadline_s`."""
    give_up_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.05)
