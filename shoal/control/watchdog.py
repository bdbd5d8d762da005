"""Notices that a worker is gone: its process has ended, or it no longer answers pings.

Owns the pings and the process watches, in a thread of its own. Decides only that a worker is
lost; what follows from it is the controller's business.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from shoal.core.errors import NodeLost
from shoal.core.placement import WorkerInfo
from shoal.wire.control import ControlClient
from shoal.wire.curve import SecureContext

INTERVAL_S = 1.0
PING_DEADLINE_S = 2.0
MISSES_ALLOWED = 3  # a machine that swaps or is suspended for a moment is slow, not gone

logger = logging.getLogger(__name__)


class Watchdog:
    """Watches local workers from `start` to `stop`.

    on_lost: called once a worker, from the watchdog's thread, with the cause.
    """

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        secure: SecureContext,
        on_lost: Callable[[WorkerInfo, str], None],
    ) -> None:
        self._workers = list(workers)
        self._secure = secure
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="shoal-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; returns when the thread has closed its sockets. Once."""
        self._stopping.set()
        os.eventfd_write(self._wake_fd, 1)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._wake_fd)

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            watched = [
                _Watched(worker, stack.enter_context(ControlClient(self._secure, worker)))
                for worker in self._workers
            ]
            next_pings_s = time.monotonic()
            try:
                while not self._wait_for_ends(watched, next_pings_s - time.monotonic()):
                    if time.monotonic() >= next_pings_s:
                        next_pings_s = time.monotonic() + INTERVAL_S
                        self._ping_all(watched)
                    watched = self._without_lost(watched)
            finally:
                for each in watched:
                    each.close()

    def _ping_all(self, watched: Sequence[_Watched]) -> None:
        for each in watched:
            if self._stopping.is_set():
                return
            each.ping()

    def _wait_for_ends(self, watched: Sequence[_Watched], wait_s: float) -> bool:
        """Wait until a process ends or the time is over; whether to stop watching."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        by_fd = {each.process_fd: each for each in watched if each.process_fd is not None}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(max(0.0, wait_s) * 1000)]
        for fd in ready:
            if fd in by_fd:
                by_fd[fd].process_ended()
        return self._wake_fd in ready

    def _without_lost(self, watched: Sequence[_Watched]) -> list[_Watched]:
        for each in watched:
            if each.cause is not None:
                each.close()
                self._on_lost(each.worker, each.cause)
        return [each for each in watched if each.cause is None]


class _Watched:
    """One worker under watch. cause: why it counts as lost, None while it lives."""

    def __init__(self, worker: WorkerInfo, client: ControlClient) -> None:
        self.worker = worker
        self.cause: str | None = None
        self._client = client
        self._num_missed = 0
        # A pidfd becomes readable the moment the process ends, whoever its parent is.
        self.process_fd: int | None = None
        try:
            self.process_fd = os.pidfd_open(worker.pid)
        except ProcessLookupError:
            self.process_ended()
        except OSError as error:  # some sandboxes have no pidfds: pings alone must do there
            logger.info("worker %s is watched by pings only: %s", worker.worker, error)

    def process_ended(self) -> None:
        self.cause = f"its process {self.worker.pid} has ended"

    def ping(self) -> None:
        if self.cause is not None:
            return
        try:
            self._client.ping(PING_DEADLINE_S)
        except NodeLost as error:
            self._num_missed += 1
            logger.info("worker %s: %s (%d in a row)", self.worker.worker, error.cause, self._num_missed)
            if self._num_missed >= MISSES_ALLOWED:
                self.cause = f"{error.cause}, {self._num_missed} times in a row"
        else:
            self._num_missed = 0

    def close(self) -> None:
        if self.process_fd is not None:
            os.close(self.process_fd)
            self.process_fd = None
