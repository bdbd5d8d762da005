"""Faults that can be done to the workers of a cluster on this machine."""

from __future__ import annotations

import contextlib
from enum import Enum

import psutil

from shoal.core.errors import ConfigError
from shoal.core.status import WorkerStatus
from shoal.gateway.client import ApiClient

THAW_AFTER_S = 4.0  # longer than any patience: what thaws then has been replaced


class FaultKind(Enum):
    """kill: the process ends at once, as when a machine loses power. stop: it freezes, as when a
    machine hangs or is cut off, and thaws when it has been replaced. leave: it is sent away politely."""

    KILL = "kill"
    STOP = "stop"
    LEAVE = "leave"


def parse_kinds(text: str) -> tuple[FaultKind, ...]:
    """Kinds with commas between them. Raises ConfigError."""
    known = {kind.value: kind for kind in FaultKind}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--kinds {text!r}: no fault is called {name!r}.", next_step=f"Use {', '.join(known)}."
            )
    return tuple(known[name] for name in names)


class Victim:
    """A worker that something is about to be done to.

    Raises ConfigError where its pid is not that of a worker here: the server that told of it may
    run elsewhere, behind a tunnel or in a container.
    """

    def __init__(self, worker: WorkerStatus) -> None:
        self.worker = worker
        with contextlib.suppress(psutil.Error):
            # psutil remembers when the process began, and signals no other one of the same pid.
            self._process = psutil.Process(worker.pid)
            if "WorkerAgent" in " ".join(self._process.cmdline()):
                return
        raise ConfigError(
            f"Process {worker.pid} is no worker of Shoal on this machine.",
            next_step="Run this where the workers run, on the host or in the same container.",
        )

    def strike(self, kind: FaultKind, client: ApiClient) -> None:
        """Do it. Raises ClientError where a leave is refused."""
        with contextlib.suppress(psutil.NoSuchProcess):
            match kind:
                case FaultKind.KILL:
                    self._process.kill()
                case FaultKind.STOP:
                    self._process.suspend()
                case FaultKind.LEAVE:
                    client.leave(self.worker.node)

    def thaw(self) -> None:
        """Let a frozen process go on, if it is there still."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.resume()
