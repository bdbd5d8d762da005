"""The head's life: from a model's name to a pipeline that has produced a token, and its end.

Owns the Ray daemon, the driver, the watchdog and the keeper. Tells what stands through `status`
and `is_ready`. Used by `shoal serve`, from one thread, except the two of ClusterView.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.control.build import own_build
from shoal.control.cluster_state import ClusterState
from shoal.control.join_door import DoorEvents, JoinDoor
from shoal.control.keeper import Keeper, Started
from shoal.control.layer_split import worker_bytes
from shoal.control.machines import Machines
from shoal.control.node_memory import usable_memory_bytes
from shoal.control.ray_daemon import LOOPBACK, RayDaemon, prepare_ray_daemon
from shoal.control.recovery import Start
from shoal.control.slice_cutting import cut_engines
from shoal.control.start_plan import (
    Report,
    ServeConfig,
    StartPhase,
    StartPlan,
    make_start_plan,
)
from shoal.control.status_view import cluster_status
from shoal.control.warm_up import produce_one_token
from shoal.control.watchdog import Watchdog
from shoal.control.worker_starter import WorkerStarter
from shoal.core.config import DriverConfig
from shoal.core.errors import ShoalError
from shoal.core.placement import NodeId, WorkerId
from shoal.core.request_times import RequestTimes, RequestTotals
from shoal.core.status import ClusterStatus
from shoal.pipeline.actions import PipelineEvent
from shoal.pipeline.driver import Driver
from shoal.pipeline.tokenizer import Tokenizer

LOOK_AGAIN_S = 0.1

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
        self._keeper: Keeper | None = None
        self._tokenizer: Tokenizer | None = None
        self._plan: StartPlan | None = None
        self._door: JoinDoor | None = None
        self._state_lock = threading.Lock()
        self._is_warm = False
        self._is_warming = False
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
        if self._config.join_listen is not None:
            # First: before minutes are spent, it shows whether the port is free.
            self._door = _new_door(self._config, *self._config.join_listen)
            self._door.start(DoorEvents(self._joined, self._gone, self._leaves))
        plan = self._plan = make_start_plan(self._config, report)
        self._tokenizer = Tokenizer(plan.model_path)
        engines = cut_engines(plan, self._config.engine, self._config.home, report)
        report(StartPhase.CLUSTER, 0, 1)
        self._daemon = prepare_ray_daemon(self._config.state_root)
        address = LOOPBACK if self._config.join_listen is None else self._config.join_listen[0]
        self._daemon.start(worker_threads=plan.threads, address=address)
        report(StartPhase.CLUSTER, 1, 1)
        self._driver = Driver(
            DriverConfig(invariant=plan.invariant),
            self._tokenizer,
            plan.n_ctx,
            listen_address=address,
            on_event=self._pipeline_event,
        )
        self._driver.start()
        machines = Machines(address, frozenset(plan.nodes), self._door)
        starter = WorkerStarter(
            self._daemon, self._driver.endpoint, engines, plan.spec.num_layers, plan.journal_bytes, machines
        )
        self._watchdog = Watchdog(self._driver.secure, self._lost)
        self._keeper = Keeper(
            self._new_state(plan, machines),
            self._driver,
            self._watchdog,
            starter,
            journal_bytes=plan.journal_bytes,
            on_change=self._changed,
            on_left=self._left,
        )
        self._watchdog.start()
        self._place(plan, self._keeper, starter, report)
        is_whole = not plan.awaiting
        if is_whole:
            report(StartPhase.WARM_UP, 0, 1)
            asyncio.run(produce_one_token(self._driver, self._tokenizer, self.worker_logs))
        with self._state_lock:
            # Where layers wait for a machine, the first token comes when it has joined.
            self._is_warm, self._has_served = is_whole, True
        if self._door is not None:
            self._door.open(self._daemon.address, self._daemon.token)
        self._keeper.restore_redundancy()
        report(StartPhase.WARM_UP, 1, 1)

    def stop(self) -> None:
        """End all that was started, within 5 s. Idempotent. After a failure the logs stay, until
        the next start.

        Raises ClusterError when a process survives.
        """
        with self._state_lock:
            self._is_warm = False
            self._is_stopping = True
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None:
                keeper.stop()  # or it would replace what is being ended
            door, self._door = self._door, None
            if door is not None:
                door.stop()
            # Then, and whatever else may hang: nothing may be left running.
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
    def keeper(self) -> Keeper:
        assert self._keeper is not None, "start comes first"
        return self._keeper

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "start comes first"
        return self._tokenizer

    @property
    def worker_logs(self) -> Path:
        assert self._daemon is not None, "start comes first"
        return self._daemon.worker_logs

    @property
    def join_address(self) -> str | None:
        """`address:port` at which machines join; None where none can."""
        return None if self._door is None else self._door.address

    @property
    def has_served(self) -> bool:
        """Whether the start was completed."""
        return self._has_served

    def is_ready(self) -> bool:
        """True once a real token was produced, and while every layer has a live owner."""
        with self._state_lock:
            return self._is_warm

    def status(self) -> ClusterStatus:
        """The placement as it is now, with the driver's figures."""
        watchdog = self._watchdog
        return cluster_status(
            model_id=self.plan.model_id,
            is_ready=self.is_ready(),
            n_ctx=self.plan.n_ctx,
            uptime_s=time.monotonic() - self._started_s,
            mode="invariant" if self.plan.invariant else "default",
            state=self.keeper.state,
            statistics=self.driver.statistics(),
            journal_limit_bytes=self.plan.journal_bytes,
            round_trip_s=lambda worker: None if watchdog is None else watchdog.round_trip_s(worker),
            is_delayed=lambda worker: watchdog is not None and watchdog.is_delayed(worker),
            last_pong=lambda worker: None if watchdog is None else watchdog.last_pong(worker),
        )

    def leave(self, node: str) -> None:
        """Let a machine go politely. Raises ConfigError for one that is not here."""
        self.keeper.leave(NodeId(node))

    def request_times(self, request_id: str | None) -> tuple[RequestTimes, ...]:
        """Where the answers of one request spent their time; of the newest one without an id."""
        return self.driver.request_times(request_id)

    def request_totals(self) -> RequestTotals:
        return self.driver.request_totals()

    # ------------------------------------------------------------ steps of the start

    def _new_state(self, plan: StartPlan, machines: Machines) -> ClusterState:
        cache = plan.cache_need
        # The digest engine holds no weights.
        is_digest = self._config.engine == "digest"
        needs = {layers: 0 if is_digest else worker_bytes(plan.spec, layers, cache) for layers in plan.ranges}
        return ClusterState(
            plan.ranges,
            plan.nodes,
            plan.survive,
            needs,
            free_bytes=lambda node, held: machines.free_bytes(node, held, usable_memory_bytes()),
            awaiting=plan.awaiting,
        )

    def _place(self, plan: StartPlan, keeper: Keeper, starter: WorkerStarter, report: Report) -> None:
        """Start a worker for each stage and route the pipeline through them."""
        starts = [Start(node, layers) for node, layers in zip(plan.nodes, plan.local_ranges, strict=False)]
        loaded: list[Started] = []

        def on_started(started: Started) -> None:
            loaded.append(started)
            logger.info("worker %s loaded layers %s", started.info.worker, started.info.layers)
            report(StartPhase.LOAD, len(loaded), len(starts))

        report(StartPhase.LOAD, 0, len(starts))
        loaded_all = starter.start_all(starts, on_started) if starts else []
        keeper.begin_with(_in_order(starts, loaded_all))
        keeper.start()

    # ------------------------------------------------------------ what happens meanwhile

    def _lost(self, worker: WorkerId, cause: str) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.lost(worker, cause)

    def _joined(self, node: NodeId) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.node_joined(node)

    def _gone(self, node: NodeId, cause: str) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.node_gone(node, cause)

    def _leaves(self, node: NodeId) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.node_leaves(node)

    def _left(self, node: NodeId) -> None:
        door = self._door
        if door is not None:
            door.left(node)

    def _pipeline_event(self, event: PipelineEvent) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.pipeline_event(event)

    def _changed(self) -> None:
        """After each event of the cluster: ready means that every layer has a live owner, and that
        a token has come since it last had none."""
        is_covered = self.keeper.is_covered
        with self._state_lock:
            if self._is_stopping or not self._has_served:
                return
            if not is_covered:
                self._is_warm = False
                self._keeps_logs = not self.keeper.state.awaiting  # nothing has failed where some wait
            if not is_covered or self._is_warm or self._is_warming:
                return
            self._is_warming = True
        threading.Thread(
            target=self._warm_up_again, args=(self.keeper,), name="shoal-warm-up", daemon=True
        ).start()

    def _warm_up_again(self, keeper: Keeper) -> None:
        try:
            if not self._streams_go_on(keeper):
                asyncio.run(produce_one_token(self.driver, self.tokenizer, self.worker_logs))
            is_warm = True
        except ShoalError as error:
            logger.error("%s", error)
            is_warm = False
        with self._state_lock:
            self._is_warming = False
            is_warm = self._is_warm = is_warm and keeper.is_covered and not self._is_stopping
        if is_warm:
            logger.warning("ready again: every layer has an owner and a token has come")

    def _streams_go_on(self, keeper: Keeper) -> bool:
        """Wait for a result of a request that was under way, which shows as much as a request of
        our own; that one would change how theirs are batched. False where there is none."""
        while True:
            figures = self.driver.statistics()
            placement = keeper.state.placement
            if placement is not None and figures.result_epoch >= placement.epoch:
                return True
            if not figures.sessions_active + figures.sessions_waiting:
                return False
            time.sleep(LOOK_AGAIN_S)


def _new_door(config: ServeConfig, address: str, port: int) -> JoinDoor:
    return JoinDoor(config.state_root, address, port, own_build(), same_bits=config.invariant)


def _in_order(starts: Sequence[Start], loaded: Sequence[Started]) -> list[tuple[Start, Started]]:
    return list(zip(starts, loaded, strict=True))
