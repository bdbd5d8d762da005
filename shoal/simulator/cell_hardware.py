"""How long a cell's machines and links take, from the cost model, and how busy they have been."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from shoal.core.placement import NodeId, WorkerId, WorkerInfo
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Rows
from shoal.planner import cost_model
from shoal.planner.cost_model import StepShape
from shoal.simulator.cell_plan import CellPlan
from shoal.simulator.virtual_network import Transit
from shoal.wire.messages import Message, Result, State, Step

Batch = tuple[WorkerInfo, int, int, float, float]
"""Who, sequences, tokens, when it started, how long it takes."""


class CellHardware:
    """Times of one cell. now_s: the clock. carries: whether a worker carries its stage now, or stands by.
    on_batch: told of every batch, for a trace."""

    def __init__(
        self,
        plan: CellPlan,
        now_s: Callable[[], float],
        carries: Callable[[WorkerInfo], bool],
        on_batch: Callable[[Batch], None],
    ) -> None:
        self.busy_s: dict[LayerRange, float] = defaultdict(float)
        self.standby_busy_s = 0.0
        self.link_s = 0.0
        self.link_bytes = 0.0
        self._plan = plan
        self._now_s = now_s
        self._carries = carries
        # Workers on one machine share its memory bus: their batches run one after the other.
        self._free_s: dict[NodeId, float] = {}
        self._on_batch = on_batch
        self._pieces = plan.pieces
        self._link = plan.scenario.link
        self._is_alone = len(plan.ranges) == 1
        self._row_bytes = {
            layers.end: 0 if layers.end == plan.model.num_layers else self._payload_bytes(layers.end)
            for layers in plan.ranges
        }
        self._widest = max(self._row_bytes.values())
        # A message names its sender only; a worker computes before it sends rows.
        self._layers: dict[WorkerId, LayerRange] = {}

    def _payload_bytes(self, cut: int) -> int:
        value_bytes = self._plan.scenario.serving.row_value_bytes
        return self._plan.model.payload_bytes(cut, bytes_per_value=value_bytes)

    @property
    def compute_s(self) -> float:
        """Of all stages together, so far, without what standbys repeat."""
        return sum(self.busy_s.values())

    def batch_s(self, worker: WorkerInfo, chunks: Sequence[Chunk]) -> float:
        """Seconds from now until a batch is done; of one sequence's state in or out of memory."""
        layers = self._layers[worker.worker] = worker.layers
        piece, speed = self._pieces[layers], self._plan.machines[worker.node].speed
        if not chunks:
            context = self._plan.scenario.serving.context_tokens
            return piece.kv_bytes(context) / speed.memory_bytes_per_s
        seconds = cost_model.slice_time(piece, _shape(chunks), speed).total_s
        now_s = self._now_s()
        start_s = max(now_s, self._free_s.get(worker.node, 0.0))
        self._free_s[worker.node] = start_s + seconds
        self._note(worker, chunks, start_s, seconds)
        return start_s + seconds - now_s

    def _note(self, worker: WorkerInfo, chunks: Sequence[Chunk], start_s: float, seconds: float) -> None:
        if self._carries(worker):
            self.busy_s[worker.layers] += seconds
        else:
            self.standby_busy_s += seconds
        num_tokens = sum(len(chunk.tokens) for chunk in chunks)
        self._on_batch((worker, len(chunks), num_tokens, start_s, seconds))

    def transit(self, sender: WorkerId, to: WorkerId, message: Message, rows: Rows | None) -> Transit:
        """One message over the scenario's link. Steps and results count as communication.

        One stage alone sits with the driver, as in the cost model: nothing crosses a link.
        """
        if self._is_alone:
            return Transit(0.0, 0.0)
        num_bytes = self._bytes(sender, message, rows)
        transit = Transit(num_bytes / self._link.bytes_per_s, self._link.latency_s + self._link.software_s)
        if isinstance(message, Step | Result):
            self.link_s += transit.occupied_s + transit.latency_s
            self.link_bytes += num_bytes
        return transit

    def _bytes(self, sender: WorkerId, message: Message, rows: Rows | None) -> float:
        layers = self._layers.get(sender)
        row_bytes = self._widest if layers is None else self._row_bytes[layers.end]
        if isinstance(message, State):
            held = len(message.tokens)
            state = 0.0 if layers is None else self._pieces[layers].kv_bytes(held)
            return state + held * row_bytes
        # Token ids and headers are left out, as in the cost model.
        return 0.0 if rows is None else len(rows) * row_bytes


def _shape(chunks: Sequence[Chunk]) -> StepShape:
    num_tokens = sum(len(chunk.tokens) for chunk in chunks)
    # A chunk's tokens attend to half of it on average, a lone one to itself as well as all before.
    context = sum(chunk.start + len(chunk.tokens) // 2 for chunk in chunks) // len(chunks)
    num_sampled = sum(chunk.draw is not None for chunk in chunks)
    return StepShape(num_tokens, len(chunks), context, num_sampled)
