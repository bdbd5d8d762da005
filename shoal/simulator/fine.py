"""The fine mode: cells of production's policy in one virtual time, requests coming, machines going.

Every step, message and recovery is simulated; only computing and the network are figures of the cost
model. `run` may be interrupted at any time: what has happened so far is then the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import simpy

from shoal.core.config import DriverConfig
from shoal.core.errors import NotReady, Overloaded, ShoalError
from shoal.core.placement import NodeId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.engine.interface import Engine
from shoal.simulator.cell_hardware import Batch, CellHardware
from shoal.simulator.cell_plan import CellPlan, deal_machines, make_layouts, plan_cell
from shoal.simulator.failures import draw_absences
from shoal.simulator.records import RequestRecord, TimePoint
from shoal.simulator.scenario import Churn, Scenario
from shoal.simulator.tally_engine import PlainVocabulary, TallyEngine
from shoal.simulator.virtual_cluster import VirtualCluster
from shoal.simulator.virtual_gateway import RETRY_S, VirtualGateway, Visit
from shoal.simulator.virtual_network import Process
from shoal.simulator.workload import Closed

DIGEST_VOCABULARY: Final = 50_000
TIME_POINTS: Final = 200
Progress = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class MachineEvent:
    """A machine that left or came. cause: "lost", "left politely", "room lost" or "returned"."""

    at_s: float
    machine: NodeId
    cause: str


@dataclass(slots=True)
class Absent:
    """Reasons for which a machine is away; it is there again when none is left."""

    reasons: int = 0


@dataclass(slots=True)
class FineResult:
    """What happened. elapsed_s: virtual time that was simulated, less than asked for where it was
    interrupted. batches: for a trace, where they were kept. machine_s: seconds of presence, by kind.
    availability: share of the time in which a cell's route was whole, mean over cells."""

    scenario: Scenario
    elapsed_s: float
    requests: list[RequestRecord]
    timeline: list[TimePoint]
    machine_events: list[MachineEvent]
    stalls_s: list[float]
    availability: float
    stage_busy: list[list[float]]
    compute_s: float
    link_s: float
    link_bytes: float
    machine_s: float
    machine_s_by_kind: dict[str, float]
    plans: list[CellPlan]
    batches: list[Batch] = field(default_factory=list)

    @property
    def is_partial(self) -> bool:
        return self.elapsed_s < self.scenario.duration_s


class FineSimulation:
    """keep_batches: up to so many batches are kept for a trace."""

    def __init__(self, scenario: Scenario, seed: int, *, keep_batches: int = 0) -> None:
        self.scenario = scenario
        workload_seed, churn_seed, politeness_seed = np.random.SeedSequence(seed).spawn(3)
        self._rng = np.random.default_rng(workload_seed)
        self._politeness = np.random.default_rng(politeness_seed)
        self._env = simpy.Environment()
        self._batches: list[Batch] = []
        self._keep_batches = keep_batches
        layouts = make_layouts(scenario)
        self.plans = [
            plan_cell(scenario, kinds, number, layouts)
            for number, kinds in enumerate(deal_machines(scenario))
        ]
        self._hardware = [
            CellHardware(plan, lambda: self._env.now, partial(self._carries, number), self._note_batch)
            for number, plan in enumerate(self.plans)
        ]
        serving = scenario.serving
        self._cells = [self._make_cell(number, seed) for number in range(len(self.plans))]
        self._gateway = VirtualGateway(
            self._env,
            self._cells,
            room=serving.streams,
            max_waiting=serving.max_waiting * len(self._cells),
            ended=self._visit_ended,
        )
        self._machines = [(node, cell) for cell, plan in enumerate(self.plans) for node in plan.machines]
        self._absent = [Absent() for _ in self._machines]
        self._events: list[MachineEvent] = []
        self._timeline: list[TimePoint] = []
        self._present_since = dict.fromkeys((node for node, _ in self._machines), 0.0)
        self._machine_s = dict.fromkeys(self._present_since, 0.0)
        self._counted = 0
        self._tokens_before = 0
        self._env.process(self._arrivals())
        if scenario.churn is not None:
            self._plan_churn(scenario.churn, np.random.default_rng(churn_seed))

    def run(self, progress: Progress = lambda done_s, total_s: None) -> FineResult:
        """Up to the scenario's end, or until KeyboardInterrupt."""
        duration_s = self.scenario.duration_s
        try:
            for point in range(1, TIME_POINTS + 1):
                self._env.run(until=duration_s * point / TIME_POINTS)
                self._note_time()
                progress(self._env.now, duration_s)
        except KeyboardInterrupt:
            pass  # asked for: the report says that it is partial
        return self.result()

    def stop(self) -> None:
        """End at once; from a signal's handler."""
        raise KeyboardInterrupt

    # ------------------------------------------------------------ making cells

    def _make_cell(self, number: int, seed: int) -> VirtualCluster:
        plan, hardware = self.plans[number], self._hardware[number]
        serving = self.scenario.serving
        return VirtualCluster(
            seed=seed + number,
            ranges=plan.ranges,
            make_engine=lambda layers: self._make_engine(plan, layers),
            vocabulary=PlainVocabulary(),
            n_ctx=serving.context_tokens,
            survive=serving.survive,
            nodes={node: kind.usable_memory_bytes for node, kind in plan.machines.items()},
            slice_bytes=plan.slice_bytes,
            load_s=plan.load_s,
            links=hardware,
            config=DriverConfig(
                max_waiting=serving.max_waiting,
                chunk_tokens=serving.chunk_tokens,
                slowest_link_bytes_per_s=self.scenario.link.bytes_per_s,
            ),
            compute_s=hardware.batch_s,
            ended=lambda answer: self._gateway.answer_ended(answer),
            env=self._env,
        )

    def _make_engine(self, plan: CellPlan, layers: LayerRange) -> Engine:
        serving, num_layers = self.scenario.serving, plan.model.num_layers
        cells = serving.streams * serving.context_tokens
        batch_tokens = max(serving.chunk_tokens, serving.streams)
        can_trim = plan.model.state_bytes == 0
        if serving.is_exact:
            return DigestEngine(
                layers,
                num_layers,
                n_vocab=DIGEST_VOCABULARY,
                cells=cells,
                max_sequences=serving.streams,
                max_batch_tokens=batch_tokens,
                can_trim=can_trim,
            )
        return TallyEngine(
            layers,
            num_layers,
            cells=cells,
            max_sequences=serving.streams,
            max_batch_tokens=batch_tokens,
            can_trim=can_trim,
        )

    # ------------------------------------------------------------ requests

    def _arrivals(self) -> Process:
        for arrival in self.scenario.workload.arrivals(self.scenario.duration_s, self._rng):
            yield self._env.timeout(max(0.0, arrival.at_s - self._env.now))
            self._gateway.arrive(arrival)

    def _visit_ended(self, visit: Visit) -> None:
        if isinstance(self.scenario.workload.pattern, Closed):
            self._env.process(self._think(self.scenario.workload.pattern, visit.failure))

    def _think(self, pattern: Closed, error: ShoalError | None) -> Process:
        think_s = self._rng.exponential(pattern.think_s) if pattern.think_s else 0.0
        # Who asked again at once where nobody answers would do so for ever at the same moment.
        yield self._env.timeout(think_s if error is None else max(think_s, _retry_after_s(error)))
        self._gateway.arrive(self.scenario.workload.draw(self._env.now, self._rng))

    # ------------------------------------------------------------ machines that come and go

    def _plan_churn(self, churn: Churn, rng: np.random.Generator) -> None:
        absences = draw_absences(
            churn.model,
            len(self._machines),
            self.scenario.duration_s,
            rng,
            all_present=churn.all_present,
            start_s=churn.start_s,
        )
        for machine, since_s, until_s, is_room in zip(
            absences.machine.tolist(),
            absences.since_s.tolist(),
            absences.until_s.tolist(),
            absences.is_room.tolist(),
            strict=True,
        ):
            self._env.process(self._absence(machine, since_s, until_s, is_room, churn))

    def _absence(self, machine: int, since_s: float, until_s: float, is_room: bool, churn: Churn) -> Process:
        yield self._env.timeout(since_s)
        is_polite = not is_room and since_s > 0 and self._politeness.random() < churn.polite_share
        if is_polite and not self._absent[machine].reasons:
            node, cell = self._machines[machine]
            self._cells[cell].head.leave(node)
            yield self._env.timeout(min(churn.grace_s, max(0.0, until_s - since_s)))
        self._go(machine, "room lost" if is_room else "left politely" if is_polite else "lost")
        if until_s < self.scenario.duration_s:
            yield self._env.timeout(max(0.0, until_s - self._env.now))
            self._come(machine)

    def _go(self, machine: int, cause: str) -> None:
        """It is dark at once: nobody is told, pings find out."""
        absent, (node, cell) = self._absent[machine], self._machines[machine]
        absent.reasons += 1
        if absent.reasons > 1:
            return
        cluster = self._cells[cell]
        self._events.append(MachineEvent(self._env.now, node, cause))
        self._machine_s[node] += self._env.now - self._present_since.pop(node)
        cluster.head.node_left(node)
        for worker in cluster.head.live:
            if worker.info.node == node:
                worker.kill()

    def _come(self, machine: int) -> None:
        absent, (node, cell) = self._absent[machine], self._machines[machine]
        absent.reasons -= 1
        if absent.reasons == 0:
            self._events.append(MachineEvent(self._env.now, node, "returned"))
            self._present_since[node] = self._env.now
            self._cells[cell].head.node_joined(node)

    # ------------------------------------------------------------ results

    def _carries(self, cell: int, worker: WorkerInfo) -> bool:
        placement = self._cells[cell].head.placement
        return placement is not None and worker in placement.stages

    def _note_batch(self, batch: Batch) -> None:
        if len(self._batches) < self._keep_batches:
            self._batches.append(batch)

    def _note_time(self) -> None:
        tokens = sum(len(visit.answer.pieces_s) for visit in self._gateway.visits if visit.answer)
        lost = sum(event.cause != "returned" for event in self._events)
        drivers = [cell.head.driver for cell in self._cells]
        waiting = self._gateway.num_waiting + sum(driver.num_waiting for driver in drivers)
        self._timeline.append(
            TimePoint(
                at_s=self._env.now,
                machines_present=len(self._present_since),
                cells_ready=sum(driver.is_routed for driver in drivers),
                requests_running=sum(driver.num_active for driver in drivers),
                requests_waiting=waiting,
                tokens=tokens - self._tokens_before,
                machines_lost=lost - self._counted,
            )
        )
        self._tokens_before, self._counted = tokens, lost

    def result(self) -> FineResult:
        """What has happened so far."""
        now_s = self._env.now
        machine_s = {
            node: seconds + now_s - self._present_since.get(node, now_s)
            for node, seconds in self._machine_s.items()
        }
        by_kind: dict[str, float] = {}
        for plan in self.plans:
            for node, kind in plan.machines.items():
                by_kind[kind.name] = by_kind.get(kind.name, 0.0) + machine_s[node]
        return FineResult(
            scenario=self.scenario,
            elapsed_s=now_s,
            requests=[visit.record() for visit in self._gateway.visits],
            timeline=self._timeline,
            machine_events=self._events,
            stalls_s=[stall for cell in self._cells for stall in cell.head.stalls_s],
            availability=sum(cell.head.up_s for cell in self._cells) / max(len(self._cells) * now_s, 1e-9),
            stage_busy=list(self._stage_busy(now_s)),
            compute_s=sum(hardware.compute_s for hardware in self._hardware),
            link_s=sum(hardware.link_s for hardware in self._hardware),
            link_bytes=sum(hardware.link_bytes for hardware in self._hardware),
            machine_s=sum(machine_s.values()),
            machine_s_by_kind=by_kind,
            plans=self.plans,
            batches=self._batches,
        )

    def _stage_busy(self, now_s: float) -> Iterator[list[float]]:
        """Share of the time that each stage computed, of each cell."""
        for plan, hardware in zip(self.plans, self._hardware, strict=True):
            yield [hardware.busy_s[layers] / now_s if now_s else 0.0 for layers in plan.ranges]


def _retry_after_s(error: ShoalError) -> float:
    return error.retry_after_s if isinstance(error, Overloaded | NotReady) else RETRY_S
