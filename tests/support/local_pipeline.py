"""A driver and its workers in this process, over real sockets: the token path without Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.core.config import DriverConfig, EngineConfig, WorkerConfig
from shoal.core.placement import Epoch, NodeId, Placement, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.pipeline.driver import Driver
from shoal.pipeline.vocabulary import Vocabulary
from shoal.worker.slice_worker import SliceWorker


@contextmanager
def local_pipeline(
    engines: Sequence[tuple[LayerRange, EngineConfig]],
    vocabulary: Vocabulary,
    *,
    n_ctx: int,
    config: DriverConfig | None = None,
) -> Iterator[tuple[Driver, list[SliceWorker]]]:
    """One worker an engine configuration, in order; all is closed at the end."""
    num_layers = engines[-1][0].end
    driver = Driver(config or DriverConfig(), vocabulary, n_ctx)
    driver.start()
    workers: list[SliceWorker] = []
    try:
        stages, limits = [], {}
        for number, (layers, engine) in enumerate(engines):
            worker_id, node = WorkerId(f"w{number}"), NodeId(f"n{number}")
            worker_config = WorkerConfig(worker_id, node, layers, num_layers, engine, driver.endpoint)
            worker = SliceWorker(worker_config, end_process=lambda status: None)
            listening = worker.start()
            workers.append(worker)
            stages.append(
                WorkerInfo(worker_id, node, layers, listening.endpoint, listening.control_port, listening.pid)
            )
            limits[worker_id] = listening.limits
        driver.set_placement(Placement(Epoch(1), tuple(stages)), limits, journal_bytes=1 << 28)
        yield driver, workers
    finally:
        driver.stop()
        for worker in workers:
            worker.stop()
