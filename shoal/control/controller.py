"""The head's life: from a model's name to a pipeline that has produced a token, and its end.

Owns the Ray daemon, the driver, the watchdog and the placement. Tells what stands through
`status` and `is_ready`. Used by `shoal serve`, from one thread, except the two of ClusterView.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.control.ray_daemon import RayDaemon, prepare_ray_daemon
from shoal.control.start_plan import (
    JOURNAL_BYTES,
    Report,
    ServeConfig,
    StartPhase,
    StartPlan,
    make_start_plan,
)
from shoal.control.watchdog import Watchdog
from shoal.core.config import DriverConfig, EngineConfig, WorkerConfig
from shoal.core.errors import ClusterError, ShoalError
from shoal.core.placement import Epoch, Placement, WorkerId, WorkerInfo
from shoal.core.sequence import Finished, GenerateRequest, SamplingParams
from shoal.core.status import ClusterStatus, WorkerStatus
from shoal.model.paths import slices_folder
from shoal.model.store import SliceStore
from shoal.pipeline.driver import Driver, StageFigures
from shoal.pipeline.tokenizer import Tokenizer

if TYPE_CHECKING:
    from shoal.worker.slice_worker import WorkerListening

WARM_UP_DEADLINE_S = 120.0

logger = logging.getLogger(__name__)


class Controller:
    """`start`, then serve `driver`, then `stop`; `stop` also ends a start that was interrupted
    anywhere, by any exception."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._started_s = time.monotonic()
        self._daemon: RayDaemon | None = None
        self._driver: Driver | None = None
        self._watchdog: Watchdog | None = None
        self._tokenizer: Tokenizer | None = None
        self._plan: StartPlan | None = None
        self._placement: Placement | None = None
        self._lost: dict[WorkerId, str] = {}
        self._state_lock = threading.Lock()
        self._is_warm = False
        self._is_stopping = False
        self._has_served = False
        self._keeps_logs = False

    # ------------------------------------------------------------ start and stop

    def start(self, report: Report) -> None:
        """Come up, to the first real token. Takes seconds to many minutes.

        Raises ConfigError kinds for what the operator can change, ClusterError where the
        cluster fails, and what `report` raises. Call `stop` in every case.
        """
        try:
            self._start(report)
        except ShoalError:
            self._keeps_logs = True  # the error may say where to read
            raise

    def _start(self, report: Report) -> None:
        plan = self._plan = make_start_plan(self._config, report)
        self._tokenizer = Tokenizer(plan.model_path)
        engines = self._cut(plan, report)
        report(StartPhase.CLUSTER, 0, 1)
        self._daemon = prepare_ray_daemon(self._config.state_root)
        self._daemon.start(worker_threads=plan.threads)
        report(StartPhase.CLUSTER, 1, 1)
        self._driver = Driver(DriverConfig(invariant=plan.invariant), self._tokenizer, plan.n_ctx)
        self._driver.start()
        self._place(plan, engines, self._daemon, self._driver, report)
        report(StartPhase.WARM_UP, 0, 1)
        asyncio.run(self._produce_one_token(self._driver, self._tokenizer))
        with self._state_lock:
            self._is_warm = self._has_served = True
        report(StartPhase.WARM_UP, 1, 1)

    def stop(self) -> None:
        """End all that was started, within 5 s. Idempotent. After a failure the logs stay, until
        the next start.

        Raises ClusterError when a process survives.
        """
        with self._state_lock:
            self._is_warm = False
            self._is_stopping = True
        try:
            # First, and whatever else may hang: nothing may be left running.
            self.end_processes()
        finally:
            watchdog, self._watchdog = self._watchdog, None
            if watchdog is not None:
                watchdog.stop()
            if self._driver is not None:
                self._driver.stop()

    def end_processes(self) -> None:
        """Kill every process that was started, at once and without a farewell. Idempotent."""
        if self._daemon is not None:
            self._daemon.end(keep_logs=self._keeps_logs)

    # ------------------------------------------------------------ what the gateway needs

    @property
    def plan(self) -> StartPlan:
        assert self._plan is not None, "start comes first"
        return self._plan

    @property
    def driver(self) -> Driver:
        assert self._driver is not None, "start comes first"
        return self._driver

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "start comes first"
        return self._tokenizer

    @property
    def worker_logs(self) -> Path:
        assert self._daemon is not None, "start comes first"
        return self._daemon.worker_logs

    @property
    def has_served(self) -> bool:
        """Whether the start was completed."""
        return self._has_served

    def is_ready(self) -> bool:
        """True once a real token was produced, and while every layer has a live owner."""
        with self._state_lock:
            return self._is_warm and not self._lost

    def status(self) -> ClusterStatus:
        """The placement as it is now, with the driver's figures."""
        statistics = self.driver.statistics()
        stages = () if self._placement is None else self._placement.stages
        with self._state_lock:
            lost = dict(self._lost)
        return ClusterStatus(
            model=self.plan.model_id,
            ready=self.is_ready(),
            epoch=0 if self._placement is None else self._placement.epoch,
            n_ctx=self.plan.n_ctx,
            workers=tuple(
                _worker_status(number, stage, lost.get(stage.worker), statistics.stages[stage.worker])
                for number, stage in enumerate(stages)
            ),
            missing_layers=tuple(
                (stage.layers.start, stage.layers.end) for stage in stages if stage.worker in lost
            ),
            sessions_active=statistics.sessions_active,
            sessions_waiting=statistics.sessions_waiting,
            cells_reserved=statistics.cells_reserved,
            cells_total=statistics.cells_total,
            steps_in_flight=statistics.steps_in_flight,
            uptime_s=time.monotonic() - self._started_s,
            mode="invariant" if self.plan.invariant else "default",
        )

    # ------------------------------------------------------------ steps of the start

    def _cut(self, plan: StartPlan, report: Report) -> list[EngineConfig]:
        """The engine of each stage, its files cut where the cache lacks them."""
        common = EngineConfig(
            kind=self._config.engine,
            slice_path=None,
            embedding_path=None,
            n_ctx=plan.n_ctx,
            cells=plan.cells,
            max_sequences=plan.max_sequences,
            invariant=plan.invariant,
            threads=plan.threads,
            n_vocab=plan.spec.n_vocab,
        )
        if self._config.engine == "digest":
            return [common for _ in plan.ranges]
        store = SliceStore(slices_folder(self._config.home))
        progress = _SumOfFiles(report, plan.spec.total_bytes)
        embedding = store.embedding_path(plan.model_path, plan.spec, progress.next_file())
        return [
            replace(
                common,
                slice_path=store.slice_path(plan.model_path, plan.spec, layers, progress.next_file()),
                embedding_path=embedding if layers.start == 0 else None,
            )
            for layers in plan.ranges
        ]

    def _place(
        self,
        plan: StartPlan,
        engines: Sequence[EngineConfig],
        daemon: RayDaemon,
        driver: Driver,
        report: Report,
    ) -> None:
        """Start the workers and route the pipeline through them."""
        # Ray reads its environment when it is imported, and only now is it known.
        os.environ.update(daemon.client_environment)
        from shoal.control.placer import connected_placer

        configs = [
            WorkerConfig(
                worker=WorkerId(f"{node}-{secrets.token_hex(4)}"),
                node=node,
                layers=layers,
                num_layers=plan.spec.num_layers,
                engine=engine,
                driver_public_key=driver.endpoint.public_key,
                journal_bytes=JOURNAL_BYTES,
            )
            for node, layers, engine in zip(plan.nodes, plan.ranges, engines, strict=True)
        ]
        num_loaded = 0

        def loaded(config: WorkerConfig, listening: WorkerListening) -> None:
            nonlocal num_loaded
            num_loaded += 1
            logger.info("worker %s loaded layers %s, pid %d", config.worker, config.layers, listening.pid)
            report(StartPhase.LOAD, num_loaded, len(configs))

        report(StartPhase.LOAD, 0, len(configs))
        with connected_placer(daemon.address, daemon.client_environment, daemon.worker_logs) as placer:
            listening = placer.start_workers(configs, loaded)
            placement = Placement(
                Epoch(1), tuple(_worker_info(config, listening[config.worker]) for config in configs)
            )
            placer.set_route(placement, driver.endpoint)
        limits = {worker: each.limits for worker, each in listening.items()}
        driver.set_placement(placement, limits, JOURNAL_BYTES)
        self._placement = placement
        self._watchdog = Watchdog(placement.stages, driver.secure, self._lose)
        self._watchdog.start()

    async def _produce_one_token(self, driver: Driver, tokenizer: Tokenizer) -> None:
        """Answer one request before anybody else's: what is called ready has worked once."""
        prompt = tokenizer.encode("Hello", add_special=True, parse_special=False)
        request = GenerateRequest(
            request_id="warm-up",
            prompt_tokens=tuple(prompt),
            max_tokens=1,
            sampling=SamplingParams(temperature=0.0),
            ignore_eog=True,
        )
        try:
            async with asyncio.timeout(WARM_UP_DEADLINE_S):
                async for event in driver.generate(request):
                    if isinstance(event, Finished) and event.completion_tokens == 1:
                        return
        except TimeoutError:
            cause = f"nothing came within {WARM_UP_DEADLINE_S:.0f} s"
        except ShoalError as error:
            cause = error.message
        else:
            cause = "the answer ended without a token"
        raise ClusterError(
            f"All slices are loaded, but no first token was produced: {cause.rstrip('.')}.",
            next_step=f"Read the workers' logs in {self.worker_logs}.",
        )

    def _lose(self, worker: WorkerInfo, cause: str) -> None:
        """Called by the watchdog, once a worker."""
        with self._state_lock:
            if self._is_stopping:
                return
            self._lost[worker.worker] = cause
            self._keeps_logs = True
        logger.error(
            "lost node %s with layers %s: %s; requests are refused until Shoal is started again",
            worker.node,
            worker.layers,
            cause,
        )
        self.driver.fail_worker(worker.worker, cause)


class _SumOfFiles:
    """Progress over several files that are cut one after the other. A file that the cache has
    reports nothing and counts when the next begins."""

    def __init__(self, report: Report, total_bytes: int) -> None:
        self._report = report
        self._total_bytes = total_bytes
        self._before_bytes = 0
        self._current_bytes = 0

    def next_file(self) -> Callable[[int, int], None]:
        self._before_bytes += self._current_bytes
        self._current_bytes = 0
        return self._progress

    def _progress(self, done_bytes: int, _: int) -> None:
        self._current_bytes = done_bytes
        done_bytes = min(self._before_bytes + done_bytes, self._total_bytes)
        self._report(StartPhase.CUT, done_bytes, self._total_bytes)


def _worker_info(config: WorkerConfig, listening: WorkerListening) -> WorkerInfo:
    return WorkerInfo(
        config.worker, config.node, config.layers, listening.endpoint, listening.control_port, listening.pid
    )


def _worker_status(number: int, stage: WorkerInfo, lost: str | None, figures: StageFigures) -> WorkerStatus:
    return WorkerStatus(
        worker=stage.worker,
        node=stage.node,
        stage=number,
        layer_start=stage.layers.start,
        layer_end=stage.layers.end,
        pid=stage.pid,
        address=f"{stage.endpoint.address}:{stage.endpoint.port}",
        state="live" if lost is None else f"lost: {lost}",
        compute_ms=figures.compute_ms,
        queue_ms=figures.queue_ms,
        steps=figures.steps,
    )
