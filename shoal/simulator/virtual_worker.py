"""One worker in virtual time: the production policy, an engine that takes time, and ways to die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from shoal.core.placement import WorkerInfo
from shoal.engine.interface import Chunk, Engine, Rows
from shoal.simulator.virtual_network import Process, VirtualNetwork
from shoal.wire.messages import Message, ToWorker
from shoal.worker.job import Job, StateJob, run_job, run_state_job
from shoal.worker.protocol import WorkerCore

TICK_S = 0.1

BatchTime = Callable[[WorkerInfo, Sequence[Chunk]], float]
"""Seconds that a batch takes on a worker; without chunks: saving or restoring one sequence."""


def time_by_tokens(worker: WorkerInfo, chunks: Sequence[Chunk]) -> float:
    """An imaginary machine: the same everywhere, a little for the step and a little for each token."""
    return 0.004 + 0.0005 * max(1, sum(len(chunk.tokens) for chunk in chunks))


class VirtualWorker:
    """compute_s: how long batches take; asked once for each, as it starts."""

    def __init__(
        self,
        env: simpy.Environment,
        network: VirtualNetwork,
        info: WorkerInfo,
        engine: Engine,
        num_layers: int,
        compute_s: BatchTime,
        journal_bytes: int,
    ) -> None:
        self.info = info
        self.engine = engine
        self.is_dead = False
        self.silent_since_s: float | None = None
        self.core = WorkerCore(
            info.worker,
            is_first=info.layers.start == 0,
            is_last=info.layers.end == num_layers,
            limits=engine.limits,
            retry_after_s=0.4,
            journal_bytes=journal_bytes,
        )
        self._env = env
        self._network = network
        self._compute_s = compute_s
        self._busy = False
        self._thawed: simpy.Event | None = None
        network.attach(info.worker, self._deliver)
        env.process(self._tick())

    @property
    def is_frozen(self) -> bool:
        return self._thawed is not None

    @property
    def is_empty(self) -> bool:
        """Whether it keeps no session and has nothing to do. A batch under way counts: the cells of a session
        that ends meanwhile are cleared behind it."""
        return not self._busy and self.core.num_sessions == self.core.num_queued == 0

    def kill(self) -> None:
        """The process ends: nothing comes from it any more."""
        self.is_dead = True
        self._note_silence()
        self.thaw()

    def freeze(self) -> None:
        """The process stands still, with its connections open, until `thaw`."""
        if not self.is_dead and self._thawed is None:
            self._thawed = self._env.event()
            self._note_silence()

    def thaw(self) -> None:
        if self._thawed is not None:
            thawed, self._thawed = self._thawed, None
            if not self.is_dead:
                self.silent_since_s = None
            thawed.succeed()

    def _note_silence(self) -> None:
        if self.silent_since_s is None:
            self.silent_since_s = self._env.now

    def _deliver(self, message: Message, rows: Rows | None) -> None:
        if self._thawed is not None:
            self._env.process(self._deliver_later(message, rows))
        elif not self.is_dead:
            assert isinstance(message, ToWorker)
            self.core.receive(message, rows, self._env.now)
            self._flush()

    def _deliver_later(self, message: Message, rows: Rows | None) -> Process:
        yield from self._stand_still()
        self._deliver(message, rows)

    def _stand_still(self) -> Process:
        while self._thawed is not None:
            yield self._thawed

    def _tick(self) -> Process:
        while not self.is_dead:
            yield self._env.timeout(TICK_S)
            yield from self._stand_still()
            if not self.is_dead:
                self.core.tick(self._env.now)
                self._flush()

    def _flush(self) -> None:
        if not self._busy and (job := self.core.next_job(self._env.now)) is not None:
            self._busy = True
            self._env.process(self._run(job))
        for send in self.core.take_sends():
            self._network.send(self.info.worker, send.to, send.message, send.rows)

    def _run(self, job: Job | StateJob) -> Process:
        if isinstance(job, StateJob):
            finish = partial(self.core.finish_state, job, run_state_job(self.engine, job))
            seconds = self._compute_s(self.info, ())
        else:
            outcome = run_job(self.engine, job)
            seconds = self._compute_s(self.info, job.chunks) if job.chunks else 0.0
            finish = partial(self.core.finish, job, outcome, seconds)
        yield self._env.timeout(seconds)
        yield from self._stand_still()
        if not self.is_dead:
            finish(self._env.now)
            self._busy = False
            self._flush()
