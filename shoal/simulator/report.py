"""What a simulation found, as plain values: throughput, latencies, losses, utilisation, cost.

The fine and the coarse mode report the same figures, so that one can be held against the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.catalogue.machine import MachineKind
from shoal.core.units import DAY_S, HOUR_S, KILO, MEGA
from shoal.planner import cost_model
from shoal.simulator.coarse import CoarseResult
from shoal.simulator.coarse_flows import spread_of_bins
from shoal.simulator.fine import FineResult
from shoal.simulator.records import Outcome
from shoal.simulator.scenario import Scenario
from shoal.simulator.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the machines that were there, at full power. Per million tokens of answers; None without
    tokens, or where a price is not known."""

    energy_kwh: float
    electricity_usd_per_million: float | None
    hardware_usd_per_million: float | None
    rent_usd_per_million: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run.

    first_token_s, token_s: of requests, means over each one's tokens. longest_gap_s: the longest wait
    between two tokens of each request. stalls_s: from the moment a stage was gone to the next result.
    availability: share of the time in which a cell's stages were all there, mean over cells.
    stage_busy: share of time that the stages computed, mean over cells; busy: over all of them.
    communication_share: seconds on links over seconds on links and computing, of steps and results.
    """

    scenario: str
    mode: str
    seed: int
    is_partial: bool
    duration_s: float
    elapsed_s: float
    num_machines: int
    num_cells: int
    stages_per_cell: float
    mean_present: float
    outcomes: Mapping[str, int]
    tokens: float
    tok_per_s: float
    requests_per_s: float
    first_token_s: Spread
    token_s: Spread
    longest_gap_s: Spread
    stalls_s: Spread
    availability: float
    machines_lost: int
    losses_per_machine_day: float
    stage_busy: tuple[float, ...]
    busy: float
    communication_share: float | None
    link_bytes_per_token: float | None
    cost: Cost

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())


def report_fine(result: FineResult, seed: int) -> Report:
    """The figures of a fine run."""
    scenario, elapsed_s = result.scenario, max(result.elapsed_s, 1e-9)
    requests = result.requests
    tokens = sum(request.tokens for request in requests)
    outcomes = Counter(request.outcome for request in requests)
    machines_lost = sum(event.cause != "returned" for event in result.machine_events)
    busy = [share for cell in result.stage_busy for share in cell]
    work_s = result.link_s + result.compute_s
    return Report(
        scenario=scenario.name,
        mode=scenario.mode.value,
        seed=seed,
        is_partial=result.is_partial,
        duration_s=scenario.duration_s,
        elapsed_s=result.elapsed_s,
        num_machines=scenario.cluster.num_machines,
        num_cells=len(result.plans),
        stages_per_cell=sum(len(plan.ranges) for plan in result.plans) / len(result.plans),
        mean_present=result.machine_s / elapsed_s,
        outcomes={outcome.value: outcomes[outcome] for outcome in Outcome},
        tokens=tokens,
        tok_per_s=tokens / elapsed_s,
        requests_per_s=outcomes[Outcome.ANSWERED] / elapsed_s,
        first_token_s=spread([r.first_token_s for r in requests if r.first_token_s is not None]),
        token_s=spread([r.token_s for r in requests if r.token_s is not None]),
        longest_gap_s=spread([r.longest_gap_s for r in requests if r.longest_gap_s is not None]),
        stalls_s=spread(result.stalls_s),
        availability=result.availability,
        machines_lost=machines_lost,
        losses_per_machine_day=machines_lost / max(result.machine_s / DAY_S, 1e-9),
        stage_busy=mean_by_stage(result.stage_busy),
        busy=sum(busy) / len(busy),
        communication_share=result.link_s / work_s if work_s else None,
        link_bytes_per_token=result.link_bytes / tokens if tokens else None,
        cost=cost_of(scenario, result.machine_s_by_kind, tokens),
    )


def report_coarse(result: CoarseResult, seed: int) -> Report:
    """The figures of a coarse run. Single requests are not followed, so there is no longest_gap_s."""
    scenario, elapsed_s = result.scenario, max(result.elapsed_s, 1e-9)
    machine_s = sum(result.machine_s_by_kind.values())
    return Report(
        scenario=scenario.name,
        mode=scenario.mode.value,
        seed=seed,
        is_partial=result.is_partial,
        duration_s=scenario.duration_s,
        elapsed_s=result.elapsed_s,
        num_machines=scenario.cluster.num_machines,
        num_cells=result.num_cells,
        stages_per_cell=result.num_stages,
        mean_present=machine_s / elapsed_s,
        outcomes={outcome.value: count for outcome, count in result.outcomes.items()},
        tokens=result.tokens,
        tok_per_s=result.tokens / elapsed_s,
        requests_per_s=result.outcomes[Outcome.ANSWERED] / elapsed_s,
        first_token_s=spread_of_bins(result.first_s),
        token_s=spread_of_bins(result.token_s),
        longest_gap_s=spread(()),
        stalls_s=spread(result.stalls_s),
        availability=result.availability,
        machines_lost=result.machines_lost,
        losses_per_machine_day=result.machines_lost / max(machine_s / DAY_S, 1e-9),
        stage_busy=(result.stage_busy,),
        busy=result.stage_busy,
        communication_share=result.communication_share,
        link_bytes_per_token=result.link_bytes_per_token,
        cost=cost_of(scenario, result.machine_s_by_kind, result.tokens),
    )


def mean_by_stage(cells: list[list[float]]) -> tuple[float, ...]:
    """Over the cells that have such a stage."""
    most = max(map(len, cells))
    by_stage = [[cell[stage] for cell in cells if stage < len(cell)] for stage in range(most)]
    return tuple(sum(shares) / len(shares) for shares in by_stage)


def cost_of(scenario: Scenario, machine_s_by_kind: Mapping[str, float], tokens: float) -> Cost:
    """Machines cost while they are there, busy or not; the price of a bought one is spread over its
    lifetime."""
    kinds = {kind.name: kind for kind, _ in scenario.cluster.members}
    hours = {name: seconds / HOUR_S for name, seconds in machine_s_by_kind.items()}
    kwh = sum(kinds[name].power_w * hour / KILO for name, hour in hours.items())
    hardware = _sum_known(kinds, hours, lambda kind: _capital_per_hour(kind, scenario.lifetime_s))
    rent = _sum_known(kinds, hours, lambda kind: kind.rent_usd_per_hour)
    return Cost(
        energy_kwh=kwh,
        electricity_usd_per_million=_per_million(kwh * scenario.usd_per_kwh, tokens),
        hardware_usd_per_million=_per_million(hardware, tokens),
        rent_usd_per_million=_per_million(rent, tokens),
    )


def _capital_per_hour(kind: MachineKind, lifetime_s: float) -> float | None:
    if kind.price_usd is None:
        return None
    return cost_model.capital_usd_per_hour(kind.price_usd, lifetime_s=lifetime_s, used_share=1.0)


def _sum_known(
    kinds: Mapping[str, MachineKind],
    hours: Mapping[str, float],
    usd_per_hour: Callable[[MachineKind], float | None],
) -> float | None:
    total = 0.0
    for name, hour in hours.items():
        price = usd_per_hour(kinds[name])
        if price is None:
            return None
        total += price * hour
    return total


def _per_million(usd: float | None, tokens: float) -> float | None:
    return None if usd is None or not tokens else usd / tokens * MEGA
