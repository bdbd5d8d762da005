"""One call of the engine, as the worker's policy asks for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from shoal.core.errors import EngineError, ShoalError
from shoal.core.placement import DRIVER, WorkerId
from shoal.engine.interface import Chunk, Computed, Engine, Rows
from shoal.wire.messages import State
from shoal.worker.residency import Part, Residency, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClearSeq:
    """Forget a sequence of the engine."""

    seq: int


@dataclass(frozen=True, slots=True)
class TrimSeq:
    """Cut the tail off a sequence of the engine."""

    seq: int
    length: int


@dataclass(slots=True)
class Planned:
    """One part of a task on its way through the engine. chunk: its place in the job, None where
    the journal answers."""

    part: Part
    residency: Residency
    chunk: int | None


@dataclass(slots=True)
class Job:
    """One call of the engine: first `ops` in order, then the batch (if it has chunks)."""

    task: Task
    ops: tuple[ClearSeq | TrimSeq, ...]
    chunks: tuple[Chunk, ...]
    rows: Rows | None
    planned: list[Planned] = field(default_factory=list)
    started_s: float = 0.0


@dataclass(slots=True)
class StateJob:
    """Save one sequence for `to`, or restore the `arriving` one from `blob`."""

    residency: Residency
    seq: int
    ops: tuple[ClearSeq | TrimSeq, ...]
    to: WorkerId = DRIVER
    arriving: State | None = None
    blob: bytes = b""
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class SavedState:
    """What the engine holds of a sequence; empty after a restore."""

    blob: bytes


def run_state_job(engine: Engine, job: StateJob) -> SavedState | EngineError:
    """Carry out one saving or restoring. A failure is returned, not raised."""
    try:
        for op in job.ops:
            _apply(engine, op)
        if job.arriving is None:
            return SavedState(engine.save(job.seq))
        engine.restore(job.seq, job.blob, len(job.arriving.tokens))
        return SavedState(b"")
    except ShoalError as error:
        logger.warning("a sequence could not be handed over: %s", error)
        return error if isinstance(error, EngineError) else EngineError(error.message)


def run_job(engine: Engine, job: Job) -> Computed | EngineError:
    """Carry out one job on its engine.

    A failure is returned, not raised: whatever went wrong in this batch, the worker goes on with
    the next one and the sessions in this one start over here.
    """
    try:
        for op in job.ops:
            _apply(engine, op)
        return engine.compute(job.chunks, job.rows) if job.chunks else Computed(None, ())
    except EngineError as error:
        return error
    except ShoalError as error:
        logger.exception("a batch broke an invariant of the engine")
        return EngineError(error.message)


def _apply(engine: Engine, op: ClearSeq | TrimSeq) -> None:
    match op:
        case ClearSeq(seq):
            engine.clear(seq)
        case TrimSeq(seq, length):
            if not engine.trim(seq, length):
                raise EngineError(f"sequence {seq} cannot be trimmed to {length} tokens")
