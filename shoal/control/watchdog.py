"""Notices that a worker is gone, stuck or slow.

Owns the pings and the process watches, in a thread of its own. Decides only what a worker's
silence means; what follows is the keeper's business.

Gone: its process has ended, or its connection broke and it does not answer again, or no answer
for a while in which this process ran. Stuck: it answers, but a batch makes no progress. Slow is
neither, nor is one whose pings take long: that is only reported.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from shoal.core.awake_clock import AwakeClock
from shoal.core.placement import WorkerId, WorkerInfo
from shoal.wire.control import Pinger, PingerNews, PongArrival
from shoal.wire.curve import SecureContext
from shoal.wire.messages import Pong

INTERVAL_S = 0.25
PATIENCE_S = 1.5  # a worker frozen or cut off is noticed in less than 2 s
BROKEN_PATIENCE_S = 0.3  # after its connection broke: time to connect again
STUCK_S = 15.0  # one node of a graph never computes for so long; llama.cpp calls back at each
DELAYED_S = 0.2  # a ping that takes so long and longer says that the link is slow
REMEMBERED_PINGS = 5

logger = logging.getLogger(__name__)


class Watchdog:
    """Watches workers from `start` to `stop`; they may come and go meanwhile, from any thread.

    on_lost: called once a worker, from the watchdog's thread, with the cause.
    """

    def __init__(self, secure: SecureContext, on_lost: Callable[[WorkerId, str], None]) -> None:
        self._secure = secure
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._watched: dict[WorkerId, _Watched] = {}
        self._clock = AwakeClock(time.monotonic())
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

    def watch(self, worker: WorkerInfo) -> None:
        self._call(lambda: self._add(worker))

    def forget(self, worker: WorkerId) -> None:
        """A worker that was ended on purpose is not missed. Idempotent."""
        self._call(lambda: self._remove(worker))

    def round_trip_s(self, worker: WorkerId) -> float | None:
        """How long its last ping took; None before the first answer."""
        watched = self._watched.get(worker)
        return None if watched is None else watched.round_trip_s

    def is_delayed(self, worker: WorkerId) -> bool:
        """Whether its last pings took so long that its link must be slow, or it hardly gets to run."""
        watched = self._watched.get(worker)
        return watched is not None and watched.is_delayed

    def last_pong(self, worker: WorkerId) -> Pong | None:
        """What it said of itself last; None before the first answer."""
        watched = self._watched.get(worker)
        return None if watched is None else watched.pong

    # ------------------------------------------------------------ the watchdog's thread

    def _run(self) -> None:
        self._pinger = Pinger(self._secure)
        next_ping_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                fds = [w.process_fd for w in self._watched.values() if w.process_fd is not None]
                news = self._pinger.wait(next_ping_s - time.monotonic(), [self._wake_fd, *fds])
                if self._wake_fd in news.fds:
                    os.eventfd_read(self._wake_fd)
                while self._calls:
                    self._calls.popleft()()
                now_s = time.monotonic()
                awake_s = self._clock.read(now_s)
                self._take(news, awake_s)
                if now_s >= next_ping_s:
                    next_ping_s = now_s + INTERVAL_S
                    self._pinger.ping_all(now_s)
                self._report_lost(awake_s)
        finally:
            for worker in list(self._watched):
                self._remove(worker)

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if not self._stopping.is_set():
            os.eventfd_write(self._wake_fd, 1)

    def _add(self, info: WorkerInfo) -> None:
        self._watched[info.worker] = _Watched(info, self._clock.awake_s)
        self._pinger.watch(info)

    def _remove(self, worker: WorkerId) -> None:
        watched = self._watched.pop(worker, None)
        if watched is not None:
            watched.close()
            self._pinger.forget(worker)

    def _take(self, news: PingerNews, now_s: float) -> None:
        for arrival in news.pongs:
            if arrival.worker in self._watched:
                self._watched[arrival.worker].answered(arrival, now_s)
        for worker in news.closed:
            if worker in self._watched:
                self._watched[worker].connection_broke(now_s)
        for watched in self._watched.values():
            if watched.process_fd in news.fds:
                watched.process_ended()

    def _report_lost(self, now_s: float) -> None:
        for worker, watched in list(self._watched.items()):
            cause = watched.why_lost(now_s)
            if cause is not None:
                self._remove(worker)
                self._on_lost(worker, cause)


@dataclass(slots=True)
class _Watched:
    """One worker under watch."""

    info: WorkerInfo
    answered_s: float
    round_trip_s: float | None = None
    is_delayed: bool = False
    pong: Pong | None = None
    process_fd: int | None = None
    _ended: str | None = None
    _broken_s: float | None = None
    _computing: tuple[int | None, int] = (None, 0)
    _progressed_s: float = field(default=0.0)
    _round_trips_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_PINGS))

    def __post_init__(self) -> None:
        self._progressed_s = self.answered_s
        if not self.info.is_local:
            return
        # A pidfd becomes readable the moment the process ends, whoever its parent is.
        try:
            self.process_fd = os.pidfd_open(self.info.pid)
        except ProcessLookupError:
            self.process_ended()
        except OSError as error:  # some sandboxes have no pidfds: pings alone must do there
            logger.info("worker %s is watched by pings only: %s", self.info.worker, error)

    def answered(self, arrival: PongArrival, now_s: float) -> None:
        self.answered_s = now_s
        self._broken_s = None
        self.round_trip_s = arrival.round_trip_s
        self._round_trips_s.append(arrival.round_trip_s)
        # Not one late ping: most of the last few.
        is_known = len(self._round_trips_s) == REMEMBERED_PINGS
        self.is_delayed = is_known and median(self._round_trips_s) > DELAYED_S
        self.pong = arrival.pong
        computing = (arrival.pong.computing_step, arrival.pong.progress)
        if computing[0] is None or computing != self._computing:
            self._progressed_s = now_s
        self._computing = computing

    def connection_broke(self, now_s: float) -> None:
        if self._broken_s is None:
            self._broken_s = now_s

    def process_ended(self) -> None:
        self._ended = f"its process {self.info.pid} has ended"

    def why_lost(self, now_s: float) -> str | None:
        if self._ended is not None:
            return self._ended
        if self._broken_s is not None and now_s - self._broken_s > BROKEN_PATIENCE_S:
            return "its connection broke and it does not answer"
        if now_s - self.answered_s > PATIENCE_S:
            return f"no answer to pings for {now_s - self.answered_s:.1f} s"
        if now_s - self._progressed_s > STUCK_S:
            return f"step {self._computing[0]} has made no progress for {STUCK_S:.0f} s"
        return None

    def close(self) -> None:
        if self.process_fd is not None:
            os.close(self.process_fd)
            self.process_fd = None
