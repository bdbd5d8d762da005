"""One slice at work in this process: the worker's policy on a real engine and real sockets.

Two threads. The I/O thread receives, and so answers pulls and acknowledges steps while a batch is
being computed; the compute thread owns the engine, sends its results itself and goes on with the
next batch: waking the other for that would cost each step a tenth of a millisecond. They share the
policy and the sending sockets under one lock. A third, of the control socket, answers pings
whatever the others do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.core.awake_clock import AwakeClock
from shoal.core.config import WorkerConfig
from shoal.core.errors import ClusterError
from shoal.core.placement import DRIVER, Endpoint, WorkerId
from shoal.engine.factory import load_engine
from shoal.engine.interface import Engine, EngineLimits
from shoal.wire.channel import Arrival, Channel
from shoal.wire.control import ControlServer
from shoal.wire.curve import SecureContext
from shoal.wire.messages import PROTOCOL_VERSION, Live, Peers, Pong, State, ToWorker
from shoal.worker.job import Job, StateJob, run_job, run_state_job
from shoal.worker.protocol import WorkerCore

TICK_S = 0.2
STOP_DEADLINE_S = 3.0
EXIT_LEASE_ENDED = 3
EXIT_BROKEN = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerListening:
    """Where a started worker can be reached, and what it can hold."""

    endpoint: Endpoint
    control_port: int
    pid: int
    limits: EngineLimits


class SliceWorker:
    """end_process: called, from a worker thread, when the lease has ended or a thread has died of
    a bug: a worker that cannot work must not look alive."""

    def __init__(self, config: WorkerConfig, end_process: Callable[[int], None] = os._exit) -> None:
        self._config = config
        self._end_process = end_process
        self._stopping = threading.Event()
        self._lifecycle = threading.Lock()  # of starting and stopping; not held while loading
        self._jobs: queue.SimpleQueue[Job | StateJob | None] = queue.SimpleQueue()
        self._policy = threading.Lock()  # of the core, of sending and of `_computing`
        self._computing: Job | StateJob | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> WorkerListening:
        """Load the engine, bind, and begin to work; blocks while loading.

        Raises ModelFileError, UnsupportedModel, InsufficientMemory or ConfigError.
        """
        config = self._config
        engine = load_engine(config.engine, config.layers, config.num_layers)
        with self._lifecycle, contextlib.ExitStack() as undo:
            undo.callback(engine.close)
            if self._stopping.is_set():
                raise ClusterError(f"Worker {config.worker} was stopped while it loaded.")
            self._engine: Engine = engine
            self._core = WorkerCore(
                config.worker,
                is_first=config.is_first,
                is_last=config.is_last,
                limits=engine.limits,
                journal_bytes=config.journal_bytes,
            )
            self._secure = SecureContext()
            undo.callback(self._secure.close)
            self._secure.allowed.replace([config.driver.public_key])
            self._channel = Channel(self._secure, config.listen_address)
            undo.callback(self._channel.close)
            self._channel.set_peers({DRIVER: config.driver})
            self._control = ControlServer(self._secure, config.listen_address, self._pong)
            self._start_threads()
            undo.pop_all()
        return WorkerListening(self._channel.endpoint, self._control.port, os.getpid(), engine.limits)

    def _start_threads(self) -> None:
        self._clock = AwakeClock(time.monotonic(), longest_gap_s=1.0)
        self._heard_s = self._clock.awake_s
        self._control.start()
        for name, run in (("shoal-io", self._run_io), ("shoal-compute", self._run_compute)):
            thread = threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def renew_lease(self) -> None:
        """The head lives: it will still be heard from. From any thread."""
        self._heard_s = self._clock.awake_s

    def stop(self) -> None:
        """End all threads, free the engine and close the sockets. Idempotent."""
        with self._lifecycle:
            if self._stopping.is_set():
                return
            self._stopping.set()
            if self._threads:
                self._end()

    def _end(self) -> None:
        self._channel.wake()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join(STOP_DEADLINE_S)
        self._control.stop()
        if any(thread.is_alive() for thread in self._threads):
            # Freed under a batch that is still being computed, the engine would take the process down.
            logger.warning("worker %s stopped in the middle of a batch", self._config.worker)
            return
        self._channel.close()
        self._secure.close()
        self._engine.close()

    # ------------------------------------------------------------ threads

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception:
            logger.exception("worker %s ends: a thread died of a bug", self._config.worker)
            self._end_process(EXIT_BROKEN)

    def _run_io(self) -> None:
        wake_s = time.monotonic() + TICK_S
        while not self._stopping.is_set():
            arrivals = self._channel.receive(wake_s - time.monotonic())
            now_s = time.monotonic()
            awake_s = self._clock.read(now_s)
            with self._policy:
                for arrival in arrivals:
                    self._receive(arrival, now_s)
                if now_s >= wake_s:
                    wake_s = now_s + TICK_S
                    self._core.tick(now_s)
                    self._check_lease(awake_s)
                if (due_s := self._core.next_due_s) is not None:
                    wake_s = min(wake_s, due_s)
                if self._computing is None and (job := self._next_job(now_s)) is not None:
                    self._jobs.put(job)
                self._flush()

    def _run_compute(self) -> None:
        while (job := self._jobs.get()) is not None:
            while job is not None:
                finish = self._compute(job)
                with self._policy:
                    finish(time.monotonic())
                    self._flush()  # at once: others wait for it
                    job = self._next_job(time.monotonic())
                    self._flush()

    def _compute(self, job: Job | StateJob) -> Callable[[float], None]:
        """Carry a job out; returns what makes the policy take its outcome in."""
        if isinstance(job, StateJob):
            return partial(self._core.finish_state, job, run_state_job(self._engine, job))
        started_s = time.perf_counter()
        outcome = run_job(self._engine, job)
        return partial(self._core.finish, job, outcome, time.perf_counter() - started_s)

    # ------------------------------------------------------------ steps, under the lock

    def _receive(self, arrival: Arrival, now_s: float) -> None:
        message = arrival.message
        if isinstance(message, Live):
            self.renew_lease()
        if isinstance(message, Peers):
            self._take_peers(message)
        if isinstance(message, ToWorker):
            row_width = 1 if isinstance(message, State) else self._engine.limits.row_width_in
            self._core.receive(message, arrival.rows(row_width), now_s)

    def _take_peers(self, message: Peers) -> None:
        """Let everybody of the placement in, before the policy confirms it."""
        if message.epoch >= self._core.epoch:
            peers = {p.worker: Endpoint(p.address, p.port, p.public_key) for p in message.peers}
            self._channel.set_peers({WorkerId(worker): peer for worker, peer in peers.items()})

    def _next_job(self, now_s: float) -> Job | StateJob | None:
        self._computing = None if self._stopping.is_set() else self._core.next_job(now_s)
        return self._computing

    def _flush(self) -> None:
        for send in self._core.take_sends():
            self._channel.send(send.to, send.message, send.rows)

    def _check_lease(self, awake_s: float) -> None:
        if awake_s > self._heard_s + self._config.lease_s:
            logger.warning(
                "worker %s ends: nothing heard from the head for %.0f s",
                self._config.worker,
                self._config.lease_s,
            )
            self._end_process(EXIT_LEASE_ENDED)
            self._heard_s = awake_s

    def _pong(self, nonce: int) -> Pong:
        """Read without locks from other threads' state: each field is a single word."""
        self.renew_lease()  # only the head pings; before there is a route, nothing else is heard of it
        job = self._computing
        return Pong(
            nonce,
            PROTOCOL_VERSION,
            self._config.worker,
            self._core.epoch,
            self._core.last_step_received,
            job.task.step.step_id if isinstance(job, Job) else None,
            self._engine.progress,
            self._core.num_sessions,
            self._core.journal_bytes,
            self._core.num_cut_journals,
            self._core.num_journal_cuts,
            self._core.num_long_pulls,
            self._core.computed_tokens,
            self._core.compute_s,
            self._core.pulled_tokens,
            self._core.pull_s,
        )
