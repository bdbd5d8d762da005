"""What is to be simulated: machines, model, serving, requests, failures. Plain values, checked.

A scenario's machines are dealt out to cells: groups of tens of machines that serve the model on their
own, behind gateways that send each request to the emptiest cell. A small cluster is one cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from shoal.catalogue.failure import FailureModel
from shoal.catalogue.machine import LinkKind
from shoal.planner.cluster import Cluster
from shoal.planner.model_demand import ModelDemand
from shoal.simulator.workload import Workload

LARGEST_FINE: Final = 256  # machines; beyond, the fine mode takes hours


class Mode(Enum):
    """FINE runs production's policy for every message; COARSE counts streams in cells."""

    FINE = "fine"
    COARSE = "coarse"


@dataclass(frozen=True, slots=True)
class Serving:
    """How cells serve.

    cell_machines: machines of one. spares: of these, machines that carry no stage at the start.
    survive: machines of a cell that may be lost without loading weights. streams: sequences
    at once in a cell. context_tokens: the most that one may have. chunk_tokens: of a prefill step.
    max_waiting: requests that wait for each cell before more are refused. gateway_cells: cells behind
    one gateway. is_exact: compute digests, so that a wrong answer would show; slower.
    """

    cell_machines: int
    spares: int = 0
    survive: int = 0
    streams: int = 8
    context_tokens: int = 4096
    chunk_tokens: int = 128
    max_waiting: int = 64
    row_value_bytes: int = 4
    gateway_cells: int = 64
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Churn:
    """How machines leave and return. polite_share: of those that leave, the share that says so and
    waits up to grace_s for its successor; others are gone at once. start_s: time of the week at 0."""

    model: FailureModel
    all_present: bool = True
    polite_share: float = 0.0
    grace_s: float = 30.0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run depends on, beside the seed. load_bytes_per_s: at which a fresh machine gets
    its weights. notice_s: until a machine that went silent counts as lost, in the coarse mode (the fine
    one runs the watchdog's rule)."""

    name: str
    mode: Mode
    cluster: Cluster
    model: ModelDemand
    link: LinkKind
    duration_s: float
    serving: Serving
    workload: Workload
    churn: Churn | None
    load_bytes_per_s: float
    notice_s: float
    usd_per_kwh: float
    lifetime_s: float

    @property
    def num_cells(self) -> int:
        """Whole cells; machines that are left over join the last one."""
        return max(1, self.cluster.num_machines // self.serving.cell_machines)
