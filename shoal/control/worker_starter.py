"""Starts workers while the pipeline runs, and ends lost ones, through Ray where it must."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from shoal.control.keeper import Started
from shoal.control.machines import Machines, Place
from shoal.control.ray_daemon import RayDaemon
from shoal.control.recovery import Start
from shoal.core.config import EngineConfig, WorkerConfig
from shoal.core.errors import ClusterError, ShoalError
from shoal.core.placement import Endpoint, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.worker.slice_worker import WorkerListening

if TYPE_CHECKING:  # it imports Ray, which reads its environment just then
    from shoal.control.placer import Placer

logger = logging.getLogger(__name__)


class WorkerStarter:
    """engines: how each layer range is loaded on the head's machine. driver: where the workers' results
    go. machines: where nodes are, and how slices get there."""

    def __init__(
        self,
        daemon: RayDaemon,
        driver: Endpoint,
        engines: Mapping[LayerRange, EngineConfig],
        num_layers: int,
        journal_bytes: int,
        machines: Machines,
    ) -> None:
        self._daemon = daemon
        self._driver = driver
        self._engines = engines
        self._num_layers = num_layers
        self._journal_bytes = journal_bytes
        self._machines = machines
        # A process has one connection to Ray. All that load share it, so that a slice that takes
        # minutes on one machine does not keep another from being replaced.
        self._connecting = threading.Lock()
        self._connection: tuple[ExitStack, Placer] | None = None
        self._num_users = 0

    def start(self, starts: Sequence[Start]) -> list[Started | ShoalError]:
        """Start workers, all at once, and wait until they have loaded; one outcome each, in order."""
        try:
            loaded = self.start_all(starts, lambda started: None)
        except ShoalError as error:
            return [error for _ in starts]
        return list(loaded)

    def start_all(self, starts: Sequence[Start], on_started: Callable[[Started], None]) -> list[Started]:
        """Start workers, all at once. on_started: called as each has loaded, in that order.

        Raises ClusterError when one of them fails.
        """
        # Ray reads its environment when it is imported, and only now is it known.
        os.environ.update(self._daemon.client_environment)
        from shoal.control.placer import Order

        began_s = time.monotonic()
        places = [self._machines.place(start.node) for start in starts]
        # Before the connection is taken: a machine may have to fetch its slice for minutes.
        configs = [self._config(start, place) for start, place in zip(starts, places, strict=True)]
        orders = [
            Order(config, place.resource, partial(self._machines.is_gone, place))
            for config, place in zip(configs, places, strict=True)
        ]
        local = {config.node for config, place in zip(configs, places, strict=True) if place.is_local}
        loaded: dict[WorkerId, Started] = {}

        def listening(config: WorkerConfig, listening: WorkerListening) -> None:
            is_local = config.node in local
            started = Started(
                _info(config, listening, is_local=is_local), listening.limits, time.monotonic() - began_s
            )
            loaded[config.worker] = started
            on_started(started)

        with self._connected() as placer:
            placer.start_workers(orders, listening)
        missing = [config.worker for config in configs if config.worker not in loaded]
        if missing:
            raise ClusterError(f"Workers {', '.join(missing)} did not come up.")
        return [loaded[config.worker] for config in configs]

    def end(self, worker: WorkerInfo) -> None:
        """Kill a lost worker's process; where its machine does not hear of it, its lease ends it."""
        if worker.is_local:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        else:
            self._machines.end_worker(worker)

    @contextmanager
    def _connected(self) -> Iterator[Placer]:
        """The connection to Ray: the first who needs it makes it, the last closes it."""
        from shoal.control.placer import connected_placer

        daemon = self._daemon
        with self._connecting:
            if self._connection is None:
                stack = ExitStack()
                placer = stack.enter_context(
                    connected_placer(daemon.address, daemon.client_environment, daemon.worker_logs)
                )
                self._connection = stack, placer
            stack, placer = self._connection
            self._num_users += 1
        try:
            yield placer
        finally:
            with self._connecting:
                self._num_users -= 1
                if self._num_users == 0:
                    self._connection = None
                    stack.close()

    def _config(self, start: Start, place: Place) -> WorkerConfig:
        return WorkerConfig(
            worker=WorkerId(f"{start.node}-{secrets.token_hex(4)}"),
            node=start.node,
            layers=start.layers,
            num_layers=self._num_layers,
            engine=self._machines.bring(place, self._engines[start.layers]),
            driver=self._driver,
            listen_address=place.address,
            journal_bytes=self._journal_bytes,
        )


def _info(config: WorkerConfig, listening: WorkerListening, *, is_local: bool) -> WorkerInfo:
    return WorkerInfo(
        config.worker,
        config.node,
        config.layers,
        listening.endpoint,
        listening.control_port,
        listening.pid,
        is_local,
    )
