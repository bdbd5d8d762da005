"""A kind of machine: what it holds, moves, computes, draws and costs. Figures of one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.catalogue.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Speed:
    """What a machine achieves, as the cost model uses it: measured, or derated from its maker's figures.

    memory_bytes_per_s: reading weights. matrix_ops_per_s: where a step has at least
    `matrix_min_rows` tokens; vector_ops_per_s: below that (CPUs multiply few rows at a time one
    by one and reach about half their rate). An operation is one multiplication or one addition.
    step_overhead_s, layer_overhead_s: per step, and per layer in a step, whatever it holds (starting
    kernels, waking threads).
    """

    memory_bytes_per_s: float
    matrix_ops_per_s: float
    vector_ops_per_s: float
    matrix_min_rows: int = 1
    step_overhead_s: float = 0.0
    layer_overhead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Derating:
    """How much of the printed figures is achieved, by class of machine.

    memory, compute: shares of the printed rates. few_rows: share of the derated compute rate that
    remains for steps below `matrix_min_rows` tokens.
    """

    memory: float
    compute: float
    few_rows: float
    matrix_min_rows: int
    step_overhead_s: float
    layer_overhead_s: float


@dataclass(frozen=True, slots=True)
class MachineKind:
    """One kind of machine in the catalogue.

    memory_bytes: what can hold weights and is read at memory_bytes_per_s. usable_memory_bytes:
    less what the system and the runtime keep. marketed_ops_per_s: the maker's figure;
    usable_ops_per_s: what a program can reach at most, in the same 16-bit (or single) precision.
    link: name of the network that it comes with. power_w: under load, the host of a card included.
    price_usd: to buy, likewise; rent_usd_per_hour: to rent; None where no figure is known.
    provenance: field name to source, for every value from the catalogue.
    """

    name: str
    title: str
    group: str
    memory_bytes: int
    usable_memory_bytes: int
    memory_bytes_per_s: float
    marketed_ops_per_s: float
    usable_ops_per_s: float
    derating: Derating
    link: str
    power_w: float
    idle_power_w: float | None = None
    price_usd: float | None = None
    rent_usd_per_hour: float | None = None
    aliases: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    @property
    def speed(self) -> Speed:
        """The printed rates times the derating of this class of machine."""
        matrix = self.usable_ops_per_s * self.derating.compute
        return Speed(
            memory_bytes_per_s=self.memory_bytes_per_s * self.derating.memory,
            matrix_ops_per_s=matrix,
            vector_ops_per_s=matrix * self.derating.few_rows,
            matrix_min_rows=self.derating.matrix_min_rows,
            step_overhead_s=self.derating.step_overhead_s,
            layer_overhead_s=self.derating.layer_overhead_s,
        )

    @property
    def printed_speed(self) -> Speed:
        """The printed rates as they stand: the bound that nothing can beat."""
        return Speed(self.memory_bytes_per_s, self.usable_ops_per_s, self.usable_ops_per_s)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Fields whose value is not verified."""
        return tuple(name for name, origin in self.provenance.items() if origin.is_unverified)


@dataclass(frozen=True, slots=True)
class LinkKind:
    """One kind of network between two machines.

    latency_s: one way, for a small message, network alone. software_s: one hop in the processes
    at both ends (serialising, encrypting, waking). bytes_per_s: payload in one direction.
    """

    name: str
    title: str
    latency_s: float
    software_s: float
    bytes_per_s: float
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
