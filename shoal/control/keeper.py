"""Keeps the pipeline standing: takes in what happens to workers, and does what recovery decides.

One thread, so that events are handled one after the other; loading happens in others. The
decisions are `recovery.decide`'s, the noticing is the watchdog's and the driver's.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.control.cluster_state import ClusterState, Loss
from shoal.control.recovery import Decision, Rung, Start, decide, predict_stall_s, rung_of
from shoal.core.errors import ConfigError, NodeLost, NotReady, ShoalError
from shoal.core.placement import DRIVER, NodeId, Placement, WorkerId, WorkerInfo
from shoal.engine.interface import EngineLimits
from shoal.pipeline.actions import HandedOver, LinkCut, PipelineEvent, Resumed, StageSilent
from shoal.pipeline.driver import Driver

STOP_DEADLINE_S = 3.0
STREAMS_FIRST_S = 10.0  # after a loss, for streams to go on before standbys are loaded
START_AGAIN_S = 5.0  # after a start that failed, before the same one

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A worker that has loaded. load_s: what that took."""

    info: WorkerInfo
    limits: EngineLimits
    load_s: float


class Starter(Protocol):
    """Starts and ends worker processes; both may take long."""

    def start(self, starts: Sequence[Start]) -> list[Started | ShoalError]:
        """Start workers, all at once; one outcome each, in order."""
        ...

    def end(self, worker: WorkerInfo) -> None:
        """Make sure that a lost worker's process is gone. Never raises."""
        ...


class Watch(Protocol):
    """Notices losses (control/watchdog.py)."""

    def watch(self, worker: WorkerInfo) -> None: ...

    def forget(self, worker: WorkerId) -> None: ...


class Keeper:
    """journal_bytes: what each worker may journal. on_change: called after each event, in the
    keeper's thread. on_left: called when a machine that asked to go may do so. is_covered: whether every
    layer has a live owner."""

    def __init__(
        self,
        state: ClusterState,
        driver: Driver,
        watch: Watch,
        starter: Starter,
        *,
        journal_bytes: int,
        on_change: Callable[[], None] = lambda: None,
        on_left: Callable[[NodeId], None] = lambda node: None,
    ) -> None:
        self.state = state
        self._driver = driver
        self._watch = watch
        self._starter = starter
        self._journal_bytes = journal_bytes
        self._on_change = on_change
        self._on_left = on_left
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._restores = False
        self._handing: set[WorkerId] = set()
        self.is_covered = False
        self._told_stranded = ""
        self._thread = threading.Thread(target=self._run, name="shoal-keeper", daemon=True)

    def begin_with(self, loaded: Sequence[tuple[Start, Started]]) -> None:
        """Take the first workers in and route the pipeline through them. Before `start`."""
        for start, started in loaded:
            self.state.started(start, started.info, started.limits, started.load_s)
            self._watch.watch(started.info)
        self._recover()

    def start(self) -> None:
        self._thread.start()

    def restore_redundancy(self) -> None:
        """From now on, load standbys as they are missing."""
        self._restores = True
        self._events.put(self._recover)

    def stop(self) -> None:
        """Decide nothing more. Idempotent."""
        self._stopping = True
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join(STOP_DEADLINE_S)

    def lost(self, worker: WorkerId, cause: str) -> None:
        """The watchdog has noticed a loss. From any thread."""
        self._events.put(lambda: self._lose(worker, cause))

    def leave(self, node: NodeId) -> None:
        """A machine wants to go: hand over what it carries. From any thread. Returns at once; the
        machine has left when no worker of its is live any more.

        Raises ConfigError for a node that is not here.
        """
        if node not in self.state.nodes:
            known = ", ".join(self.state.nodes)
            raise ConfigError(f"There is no node {node!r} here.", next_step=f"Nodes: {known}.")
        self._events.put(lambda: self._begin_leave(node))

    def node_joined(self, node: NodeId) -> None:
        """A machine has joined, and may be given work. From any thread."""
        self._events.put(lambda: self._join(node))

    def node_gone(self, node: NodeId, cause: str) -> None:
        """A machine that had joined is lost, with all that it carried. From any thread."""
        self._events.put(lambda: self._lose_node(node, cause))

    def node_leaves(self, node: NodeId) -> None:
        """A machine that had joined asks to go. From any thread; nothing happens where it has gone."""
        self._events.put(lambda: self._begin_leave(node))

    def pipeline_event(self, event: PipelineEvent) -> None:
        """The driver has noticed something. From the driver's thread: it must not wait."""
        self._events.put(lambda: self._take(event))

    def started(self, start: Start, outcome: Started | ShoalError) -> None:
        """A worker has loaded, or could not. From any thread."""
        self._events.put(lambda: self._finish_start(start, outcome))

    # ------------------------------------------------------------ the keeper's thread

    def _run(self) -> None:
        while (handle := self._events.get()) is not None:
            try:
                handle()
                self._on_change()
            except ShoalError:
                if not self._stopping:
                    logger.exception("an event of the cluster could not be handled")

    def _take(self, event: PipelineEvent) -> None:
        match event:
            case LinkCut():
                self._lose(event.to_replace, _why_cut(event))
            case StageSilent(worker, step_id):
                logger.warning("worker %s is slow: it has had step %d for long", worker, step_id)
            case Resumed(epoch, stall_s):
                self._resumed(epoch, stall_s)
            case HandedOver(leaving, successor, is_complete):
                self._handed_over(leaving, successor, is_complete=is_complete)

    def _join(self, node: NodeId) -> None:
        self.state.join(node)
        self._recover()

    def _lose_node(self, node: NodeId, cause: str) -> None:
        if node not in self.state.joined:
            return
        # Out of the list first: nothing is to be started there while its workers are being lost.
        lost = [worker for worker in self.state.live if worker.node == node]
        self.state.remove(node)
        for worker in lost:
            self._lose(worker.worker, cause)
        self._recover()

    def _lose(self, worker: WorkerId, cause: str) -> None:
        loss = self.state.lose(worker, cause)
        if loss is None:
            return
        self._driver.lose_worker(worker)
        self._watch.forget(worker)
        logger.error(
            "lost worker %s on node %s with layers %s: %s",
            worker,
            loss.worker.node,
            loss.worker.layers,
            cause,
        )
        # A machine that comes back must find its old self gone; ending it may take long.
        threading.Thread(target=self._starter.end, args=(loss.worker,), daemon=True).start()
        self._recover()

    def _begin_leave(self, node: NodeId) -> None:
        if node not in self.state.nodes:
            return
        self.state.leave(node)
        logger.warning("node %s leaves: its sessions are handed over", node)
        self._recover()

    def _handed_over(self, leaving: WorkerId, successor: WorkerId, *, is_complete: bool) -> None:
        """The successor holds the sessions: change the route, then let the old owner go."""
        self._handing.discard(leaving)
        if not is_complete:
            logger.warning("%s did not hand everything over; %s pulls the rest", leaving, successor)
        self._retire(leaving)
        self._recover()

    def _retire(self, worker: WorkerId) -> None:
        info = self.state.retire(worker)
        if info is not None:
            self._watch.forget(worker)
            self._driver.lose_worker(worker)
            threading.Thread(target=self._starter.end, args=(info,), daemon=True).start()
            logger.warning("worker %s on node %s has left", worker, info.node)

    def _finish_start(self, start: Start, outcome: Started | ShoalError) -> None:
        if isinstance(outcome, ShoalError):
            self.state.start_failed(start)
            logger.error("layers %s could not be loaded on %s: %s", start.layers, start.node, outcome)
            self._look_again(START_AGAIN_S, lambda: self._try_again(start))
            self._recover()
            return
        if start.node not in self.state.nodes:  # the machine was lost just when it had loaded
            self.state.start_failed(start)
            self._recover()
            return
        self.state.started(start, outcome.info, outcome.limits, outcome.load_s)
        self._watch.watch(outcome.info)
        logger.info("worker %s loaded layers %s", outcome.info.worker, start.layers)
        self._recover()

    def _try_again(self, start: Start) -> None:
        self.state.forgive(start.layers)
        self._recover()

    def _recover(self) -> None:
        """Look at the facts and do what they ask for."""
        decision = decide(self.state.facts())
        self.is_covered = not decision.uncovered
        if decision.stranded:
            self._strand(decision)
        else:
            self._told_stranded = ""
        if decision.placement is not None and decision.placement != self.state.placement:
            self._switch(decision.placement)
        for leaving, successor in decision.hand_overs:
            if leaving.worker not in self._handing:
                self._handing.add(leaving.worker)
                self._driver.hand_over(leaving.worker, successor.worker)
        for standby in decision.give_up:
            logger.warning("%s gives up layers %s: a stage needs the memory", standby.node, standby.layers)
            self._retire(standby.worker)
        if decision.starts and (decision.uncovered or (self._restores and not self._streams_stand_still())):
            self._begin(decision.starts)
        for worker in self.state.idle_on_leaving():
            self._retire(worker.worker)
        for node in self.state.left():
            self.state.remove(node)
            logger.warning("machine %s has left", node)
            self._on_left(node)

    def _streams_stand_still(self) -> bool:
        """Whether streams wait for a stage that has just been replaced: its pull comes before loading
        what may be needed one day. When they go on, or do not in time, there is another look."""
        since_s = time.monotonic() - STREAMS_FIRST_S
        if not any(loss.is_waited_for and loss.noticed_s > since_s for loss in self.state.losses):
            return False
        if not self._driver.statistics().sessions_active:
            return False
        self._look_again(STREAMS_FIRST_S, self._recover)
        return True

    def _look_again(self, after_s: float, look: Callable[[], None]) -> None:
        timer = threading.Timer(after_s, lambda: self._events.put(look))
        timer.daemon = True
        timer.start()

    def _begin(self, starts: Sequence[Start]) -> None:
        for start in starts:
            self.state.begin(start)
            # Each by itself: one that fails, or takes long to fetch its slice, holds up no other.
            threading.Thread(target=self._load, args=(start,), name="shoal-starter", daemon=True).start()

    def _load(self, start: Start) -> None:
        [outcome] = self._starter.start([start])
        self.started(start, outcome)

    def _strand(self, decision: Decision) -> None:
        layers = ", ".join(map(str, decision.stranded))
        waiting = [layers for layers in decision.stranded if layers in self.state.awaiting]
        if waiting and len(waiting) == len(decision.stranded):
            message = f"Layers {', '.join(map(str, waiting))} wait for a machine that joins."
            too_small = self.state.too_small_for(waiting)
            self._fail_all(NotReady(f"{message} {too_small}".strip(), retry_after_s=5.0))
            return
        last = next(
            (loss for loss in reversed(self.state.losses) if loss.worker.layers in decision.stranded), None
        )
        node = "none" if last is None else last.worker.node
        cause = "no machine has room for them" if last is None else last.cause
        self._fail_all(NodeLost(node=node, layers=layers, cause=cause))
        for loss in self.state.losses:
            if loss.end == "open" and loss.worker.layers in decision.stranded:
                loss.end = "no machine was left that could hold the layers"

    def _fail_all(self, error: ShoalError) -> None:
        """Once for each reason: at the next look there is nobody left whom it would be news to."""
        if error.message != self._told_stranded:
            self._told_stranded = error.message
            logger.warning("no way to go on: %s", error.message)
            self._driver.fail_all(error)

    def _switch(self, placement: Placement) -> None:
        before = self.state.placement
        for loss in self._open_losses():
            self._choose_rung(loss, before, placement)
        self.state.placement = placement
        limits = {w.worker: self.state.limits[w.worker] for w in placement.workers}
        self._driver.set_placement(placement, limits, self._journal_bytes)

    def _open_losses(self) -> list[Loss]:
        return [loss for loss in self.state.losses if loss.end == "open"]

    def _choose_rung(self, loss: Loss, before: Placement | None, after: Placement) -> None:
        """Note how a lost stage was replaced; a lost standby has no stage to be replaced."""
        if before is None or loss.worker not in before.stages:
            loss.end = "carried no stage"
            return
        successor = next(stage for stage in after.stages if stage.layers == loss.worker.layers)
        loss.rung = rung_of(before, successor)
        load_s = self.state.load_s.get(successor.layers, 0.0) if loss.rung is Rung.LOAD else 0.0
        loss.predicted_stall_s = predict_stall_s(self._driver.replay_estimate(), loss.rung, load_s)
        loss.end = "replaced"
        loss.replaced_s = time.monotonic() - loss.noticed_s
        loss.is_waited_for = self._driver.statistics().sessions_active > 0
        logger.warning(
            "layers %s go on as %s on %s; predicted stall %.2f s after %.2f s",
            successor.layers,
            loss.rung.value,
            successor.node,
            loss.predicted_stall_s,
            loss.replaced_s,
        )

    def _resumed(self, epoch: int, stall_s: float) -> None:
        for loss in self.state.losses:
            if loss.is_waited_for:
                loss.stall_s = stall_s
                loss.is_waited_for = False
        logger.warning("streams go on in epoch %d after a stall of %.2f s", epoch, stall_s)
        self._recover()


def _why_cut(cut: LinkCut) -> str:
    if cut.receiver == DRIVER:
        return "nothing that it sends reaches the head"
    sender = "the head" if cut.sender == DRIVER else cut.sender
    return f"nothing that {sender} sends reaches it"
