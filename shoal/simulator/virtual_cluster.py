"""The policy cores of production in virtual time: driver, workers, recovery, over a network and
machines that may misbehave.

One SimPy loop runs the same DriverCore, WorkerCore and `decide` that the real processes run, over
engines that take virtual time. Everything random comes from one seed, so a failing run replays
exactly. The fault test and the simulator both stand on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import simpy

from shoal.core.config import DriverConfig
from shoal.core.placement import NodeId, WorkerId, WorkerInfo
from shoal.core.sequence import GenerateRequest
from shoal.core.specs import LayerRange
from shoal.engine.interface import Engine
from shoal.pipeline.vocabulary import Vocabulary
from shoal.simulator.virtual_head import NOWHERE, Answer, HeadConfig, VirtualHead
from shoal.simulator.virtual_network import Links, NetworkFaults, VirtualNetwork
from shoal.simulator.virtual_worker import BatchTime, VirtualWorker, time_by_tokens

FAULT_CONFIG = DriverConfig(resend_after_s=2.0, max_resends=12, hop_deadline_s=0.5)


class VirtualCluster:
    """A head, a pipeline of workers and perhaps machines to spare, ready to answer.

    ranges: layers of each stage, placed on the first machines, one each. num_nodes: machines in
    all, each with room for workers_per_node slices; or nodes, named, with the bytes that each may
    hold, and slice_bytes, which a slice takes. make_engine: an engine for a layer range. compute_s:
    how long a batch takes. env: the clock, shared where several clusters are. journal_bytes: what each worker
    may journal.
    """

    def __init__(
        self,
        *,
        seed: int,
        ranges: Sequence[LayerRange],
        make_engine: Callable[[LayerRange], Engine],
        vocabulary: Vocabulary,
        n_ctx: int,
        num_nodes: int | None = None,
        survive: int = 0,
        workers_per_node: int = 2,
        nodes: Mapping[NodeId, int] | None = None,
        slice_bytes: Mapping[LayerRange, int] | None = None,
        load_s: float | Callable[[LayerRange], float] = 1.0,
        faults: NetworkFaults | None = None,
        links: Links | None = None,
        config: DriverConfig = FAULT_CONFIG,
        compute_s: BatchTime = time_by_tokens,
        ended: Callable[[Answer], None] = lambda answer: None,
        env: simpy.Environment | None = None,
        journal_bytes: int = 1 << 30,
    ) -> None:
        self.env = env or simpy.Environment()
        self.network = VirtualNetwork(self.env, random.Random(seed), faults or NetworkFaults(), links)
        self.workers: list[VirtualWorker] = []
        self._make_engine = make_engine
        self._num_layers = ranges[-1].end
        self._compute_s = compute_s
        self._journal_bytes = journal_bytes
        self._incarnation = count()
        if nodes is None:
            names = [NodeId(f"n{number}") for number in range(max(num_nodes or 0, len(ranges)))]
            nodes = dict.fromkeys(names, workers_per_node)
        head_config = HeadConfig(
            ranges=tuple(ranges),
            survive=survive,
            node_bytes=nodes,
            slice_bytes=slice_bytes or dict.fromkeys(ranges, 1),
            load_s=load_s if callable(load_s) else _always(load_s),
            n_ctx=n_ctx,
            driver=config,
            journal_bytes=journal_bytes,
        )
        self.head = VirtualHead(
            self.env, self.network, head_config, vocabulary, list(nodes), self.start_worker, ended
        )
        for node, layers in zip(nodes, ranges, strict=False):
            self.head.add_live(self.start_worker(node, layers))
        self.head.recover()

    @property
    def answers(self) -> list[Answer]:
        return self.head.answers

    def start_worker(self, node: NodeId, layers: LayerRange) -> VirtualWorker:
        """A new incarnation of a worker on a machine."""
        name = WorkerId(f"{node}-{layers.start}-{next(self._incarnation)}")
        info = WorkerInfo(name, node, layers, NOWHERE, 0, 0)
        engine = self._make_engine(layers)
        worker = VirtualWorker(
            self.env, self.network, info, engine, self._num_layers, self._compute_s, self._journal_bytes
        )
        self.workers.append(worker)
        return worker

    def submit(
        self, request: GenerateRequest, *, at_s: float = 0.0, cancel_after_s: float | None = None
    ) -> Answer:
        """Send a request in at a virtual time, and perhaps go away later."""
        return self.head.submit(request, at_s, cancel_after_s)

    def kill(self, worker: VirtualWorker) -> None:
        """End a worker's process; where its link stands, the head learns of it at once."""
        worker.kill()
        self.head.connection_closed(worker.info.worker)

    def run(self, *, limit_s: float = 600.0) -> None:
        """Run until every request has ended and everything is freed. Raises TimeoutError past the limit."""
        while not (self._all_ended() and self.is_empty()):
            if self.env.now > limit_s:
                raise TimeoutError(f"after {limit_s} virtual s: {self.head.describe()}")
            self.env.run(until=self.env.now + 0.5)
            self._check_journals()

    def _check_journals(self) -> None:
        for worker in self.head.live:
            used = worker.core.journal_bytes
            if used > self._journal_bytes:
                raise AssertionError(f"{worker.info.worker} journals {used} of {self._journal_bytes} bytes")

    def is_empty(self) -> bool:
        """Whether no queue, session or reservation is left anywhere, and nothing is being computed."""
        driver = self.head.driver
        return (
            driver.num_active == driver.num_waiting == driver.num_steps_in_flight == 0
            and driver.admission.num_sequences == 0
            and all(worker.is_empty for worker in self.head.live if not worker.is_frozen)
        )

    def _all_ended(self) -> bool:
        return all(answer.end is not None or answer.cancelled for answer in self.answers)


def _always(seconds: float) -> Callable[[LayerRange], float]:
    return lambda layers: seconds
