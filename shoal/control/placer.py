"""Starting, finding and ending worker processes through Ray.

The only file of the head that knows Ray. A connection is held only while workers are being
placed: a Ray client whose cluster dies ends its whole process after 60 s, and the head must
outlive that. What becomes of placed workers is the watchdog's to notice.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.util

from shoal.core.config import WorkerConfig
from shoal.core.errors import ClusterError, InvariantBroken
from shoal.core.placement import WorkerId
from shoal.worker.node_agent import WorkerFailed, create_worker_actor
from shoal.worker.slice_worker import WorkerListening

NAMESPACE = "shoal"
CONNECT_DEADLINE_S = 60.0
LOAD_DEADLINE_S = 1800.0
POLL_S = 0.2
RENEWAL_S = 5.0  # of workers that have loaded while others still do

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """One worker to be started. resource: the Ray resource of the machine for it; None is the head's.
    is_gone: whether that machine is here no more."""

    config: WorkerConfig
    resource: str | None
    is_gone: Callable[[], bool]


class Placer:
    """A connection to the cluster, good for placing workers. Made by `connected_placer`."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._actors: dict[WorkerId, Any] = {}

    def start_workers(
        self,
        orders: Sequence[Order],
        on_listening: Callable[[WorkerConfig, WorkerListening], None],
        deadline_s: float = LOAD_DEADLINE_S,
    ) -> dict[WorkerId, WorkerListening]:
        """Start one process a slice, all at once, and wait until each has loaded it.

        on_listening: called here, in the order in which they finish.
        Raises ClusterError as soon as one of them fails or dies, or its machine has gone; the others are
        left as they are, for the caller to end.
        """
        pending = {self._start(order): order.config for order in orders}
        listening: dict[WorkerId, WorkerListening] = {}
        give_up_at_s = time.monotonic() + deadline_s
        next_renewal_s = time.monotonic() + RENEWAL_S
        while pending:
            # Short waits, so that a signal is acted on while a minute of loading goes on.
            done, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_S)
            for reference in done:
                config = pending.pop(reference)
                listening[config.worker] = self._started(config, reference)
                on_listening(config, listening[config.worker])
            if time.monotonic() > next_renewal_s:
                next_renewal_s = time.monotonic() + RENEWAL_S
                for worker in listening:
                    self._actor(worker).renew_lease.remote()
            for order in orders:
                # Ray itself notices a lost machine only after many seconds, and waits for another.
                if order.config in pending.values() and order.is_gone():
                    raise self._error(order.config, "its machine has gone")
            if pending and time.monotonic() > give_up_at_s:
                slow = next(iter(pending.values()))
                raise self._error(slow, f"it did not load within {deadline_s:.0f} s")
        return listening

    def find_workers(self) -> list[WorkerId]:
        """The workers that live in this cluster, whoever started them."""
        return [WorkerId(name) for name in ray.util.list_named_actors()]

    def kill_worker(self, worker: WorkerId) -> None:
        """End a worker's process at once. No error if it is gone already."""
        try:
            ray.kill(self._actor(worker), no_restart=True)
        except ValueError:
            return
        self._actors.pop(worker, None)

    def _start(self, order: Order) -> Any:
        config = order.config
        actor = create_worker_actor(config, order.resource)
        self._actors[config.worker] = actor
        return actor.start.remote()

    def _started(self, config: WorkerConfig, reference: Any) -> WorkerListening:
        try:
            result: WorkerListening | WorkerFailed = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise self._error(config, _first_line(error)) from error
        if isinstance(result, WorkerFailed):
            raise self._error(config, result.message, result.next_step)
        return result

    def _actor(self, worker: WorkerId) -> Any:
        if worker not in self._actors:
            self._actors[worker] = ray.get_actor(worker)
        return self._actors[worker]

    def _error(self, config: WorkerConfig, cause: str, next_step: str | None = None) -> ClusterError:
        return ClusterError(
            f"The worker of layers {config.layers} on node {config.node} could not start: "
            f"{cause.rstrip('.')}.",
            next_step=next_step or f"Read the workers' logs in {self._log_directory}.",
        )


@contextmanager
def connected_placer(address: str, environment: Mapping[str, str], log_directory: Path) -> Iterator[Placer]:
    """Connect this process to the cluster at `address` for the length of the block.

    environment: what this process's environment must have had before it imported ray, which reads
    some of it just then. log_directory: named in errors.
    Raises ClusterError when the cluster refuses or does not answer.
    """
    if not environment.items() <= os.environ.items():
        raise InvariantBroken("Ray's environment must be set before this module imports ray.")
    # In a thread of its own: in the main thread Ray would replace our handler of SIGTERM by one
    # that exits on the spot.
    connecting = _Connecting(address)
    with _own_signal_handlers():
        try:
            connecting.wait(log_directory)
            yield Placer(log_directory)
        finally:
            # An interrupted connection is left to die with its cluster: waiting could take minutes.
            if not connecting.is_alive():
                ray.shutdown()


class _Connecting(threading.Thread):
    def __init__(self, address: str) -> None:
        super().__init__(name="shoal-ray-connect", daemon=True)
        self._address = address
        self._error: Exception | None = None
        logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of not being the main thread
        self.start()

    def run(self) -> None:
        try:
            ray.init(
                address=self._address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            self._error = error

    def wait(self, log_directory: Path) -> None:
        """Raise ClusterError when there is no connection after all."""
        give_up_at_s = time.monotonic() + CONNECT_DEADLINE_S
        while self.is_alive() and time.monotonic() < give_up_at_s:
            self.join(POLL_S)
        if self.is_alive() or self._error is not None:
            cause = "no answer" if self._error is None else _first_line(self._error)
            raise ClusterError(
                f"Cannot connect to Ray at {self._address}: {cause}.",
                next_step=f"Read the logs in {log_directory}.",
            ) from self._error


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Put our handlers back at the end: `ray.shutdown` resets that of SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
