"""Holds a worker's engine, so that a test can look at a pipeline that stands still."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shoal.engine.interface import Chunk, Computed, Rows
from shoal.worker.slice_worker import SliceWorker

DEADLINE_S = 30.0


class EngineGate:
    """Open until `hold`. is_blocked: whether a batch waits at the gate."""

    def __init__(self, worker: SliceWorker) -> None:
        self._compute = worker._engine.compute
        self._changed = threading.Condition()
        self._num_allowed: int | None = None
        self._is_blocked = False
        worker._engine.compute = self._gated  # type: ignore[method-assign]

    def hold(self, *, after: int = 0) -> None:
        """Let `after` more batches through, and no other."""
        self._set(after)

    def open(self) -> None:
        self._set(None)

    def wait_until_blocked(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_blocked, DEADLINE_S), "no batch came to the gate"

    def _set(self, num_allowed: int | None) -> None:
        with self._changed:
            self._num_allowed = num_allowed
            self._changed.notify_all()

    def _gated(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        with self._changed:
            self._is_blocked = self._num_allowed == 0
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._num_allowed != 0, DEADLINE_S), (
                "nobody opened the gate"
            )
            self._is_blocked = False
            if self._num_allowed is not None:
                self._num_allowed -= 1
        return self._compute(chunks, rows)
