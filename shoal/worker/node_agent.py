"""The Ray side of a worker: a detached, named actor around one slice worker.

The only file of the worker that knows Ray. It runs in the worker's process, is created and
called by `shoal.control.placer`, and keeps no state but the worker. Tokens never pass here: the
data plane is between the workers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from shoal.core.config import WorkerConfig
from shoal.core.errors import ShoalError
from shoal.core.garbage import keep_for_good
from shoal.worker.slice_worker import SliceWorker, WorkerListening

# A ping-like call must pass while `start` loads for a minute.
CALLS_AT_ONCE = 4
# Ray gives its head this resource itself. Without one it might start a worker on any machine.
HEAD_RESOURCE = "node:__internal_head__"
RESOURCE_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Why a worker could not start. A value rather than an exception: errors whose constructors
    want keywords do not survive being pickled, and Ray would report that instead."""

    code: str
    message: str
    next_step: str | None


class WorkerAgent:
    """What the head may ask of a worker over Ray."""

    def __init__(self, config: WorkerConfig) -> None:
        self._worker = SliceWorker(config)

    def start(self) -> WorkerListening | WorkerFailed:
        """Load the slice and open the sockets. Takes as long as loading does."""
        try:
            listening = self._worker.start()
            keep_for_good()
            return listening
        except ShoalError as error:
            return WorkerFailed(error.code, error.message, error.next_step)

    def renew_lease(self) -> None:
        """The head is alive, though it does not use this worker yet: others are still loading."""
        self._worker.renew_lease()

    def stop(self) -> None:
        """Free the engine and close the sockets."""
        self._worker.stop()


def create_worker_actor(config: WorkerConfig, resource: str | None) -> Any:
    """Start a worker process on the connected cluster; returns its handle before it has loaded.

    resource: what only the machine has that it is to run on; None is the head's own.

    Detached: it outlives the head's connection, and ends by its own lease. Never restarted by
    Ray: a return is a new incarnation with a new id and a new key.
    """
    actor_class = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(WorkerAgent)
    options = actor_class.options(
        name=config.worker,
        lifetime="detached",
        max_concurrency=CALLS_AT_ONCE,
        get_if_exists=False,
        resources={HEAD_RESOURCE if resource is None else resource: RESOURCE_SHARE},
    )
    return options.remote(config)
