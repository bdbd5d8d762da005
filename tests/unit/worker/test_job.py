"""One call of the engine, and what becomes of its errors."""

from __future__ import annotations

import logging

import pytest

from shoal.core.errors import EngineError
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.engine.interface import Chunk, Computed
from shoal.wire.messages import Step
from shoal.worker.job import ClearSeq, Job, TrimSeq, run_job
from shoal.worker.residency import Task

TASK = Task(Step(1, 1, "driver", (), ()), [], 0.0)


def _engine(**switches: bool) -> DigestEngine:
    engine = DigestEngine(LayerRange(0, 1), 1, n_vocab=9, **switches)  # type: ignore[arg-type]
    engine.compute([Chunk(0, 0, (1, 2, 3))], None)
    return engine


def test_what_the_engine_must_forget_is_forgotten_before_it_computes() -> None:
    engine = _engine()
    outcome = run_job(engine, Job(TASK, (TrimSeq(0, 2), ClearSeq(0)), (Chunk(0, 0, (4,)),), None))
    assert isinstance(outcome, Computed)
    assert engine.cells_used == 1


def test_a_job_without_chunks_only_forgets() -> None:
    engine = _engine()
    assert run_job(engine, Job(TASK, (TrimSeq(0, 1),), (), None)) == Computed(None, ())
    assert engine.cells_used == 1


def test_a_failed_batch_is_an_outcome() -> None:
    engine = _engine()
    engine._fails = lambda chunks: True
    assert isinstance(run_job(engine, Job(TASK, (), (Chunk(0, 3, (4,)),), None)), EngineError)


def test_memory_that_cannot_trim_fails_the_batch() -> None:
    outcome = run_job(_engine(can_trim=False), Job(TASK, (TrimSeq(0, 2),), (Chunk(0, 2, (4,)),), None))
    assert isinstance(outcome, EngineError)
    assert "cannot be trimmed to 2" in outcome.message


def test_a_broken_invariant_is_logged_and_fails_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        outcome = run_job(_engine(), Job(TASK, (), (Chunk(0, 9, (4,)),), None))
    assert isinstance(outcome, EngineError)
    assert "broke an invariant" in caplog.text


def test_a_bug_is_not_hidden() -> None:
    engine = _engine()

    def breaks(chunks: object) -> bool:
        raise TypeError("a bug")

    engine._fails = breaks
    with pytest.raises(TypeError, match="a bug"):
        run_job(engine, Job(TASK, (), (Chunk(0, 3, (4,)),), None))
