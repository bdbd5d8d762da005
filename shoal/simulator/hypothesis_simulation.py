"""Hypotheses judged by simulation: queues, losses and standbys decide, where formulas see none of them.

What a hypothesis says is run several times as it stands, and again with all machines and links slower and
with more losses, and faster with fewer, by the factors that the estimate's figures may be off by. The
true figure lies between the lowest and the highest of these runs; where the coarse mode ran, its own
stated error comes on top. Figures that no run has are the estimate's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from typing import Final

from shoal.catalogue.loader import Catalogue
from shoal.core.units import seconds_text
from shoal.planner.assumptions import Assumptions
from shoal.planner.hypothesis import MEASURES, Figures, Hypothesis, Known
from shoal.planner.hypothesis_estimate import CHURN_FACTOR, COST_FACTOR, TIMES_FACTOR, EstimateMethod
from shoal.simulator.coarse import CoarseSimulation
from shoal.simulator.coarse_error import FIRST_TOKEN_GAP, RARE_FACTOR, STALL_GAP, THROUGHPUT_GAP, TOKEN_GAP
from shoal.simulator.fine import FineSimulation
from shoal.simulator.hypothesis_scenario import Unheld, scenario_of
from shoal.simulator.report import Report, report_coarse, report_fine
from shoal.simulator.scenario import Mode, Scenario
from shoal.simulator.scenario_scaling import scaled
from shoal.simulator.spread import Spread

NAME: Final = "simulation"
NEEDED_LOSSES: Final = 10  # over the runs as stated, before a figure of losses means anything
SEEN_NONE: Final = 3.0  # the rule of three
Told = Callable[[float, float], None]
Progress = Callable[[str], AbstractContextManager[Told]]
"""Opens what is told of virtual seconds done and in all, over all runs of the hypothesis named."""


def _untold(name: str) -> AbstractContextManager[Told]:
    return nullcontext(lambda done_s, total_s: None)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Reports of one scenario with several seeds: as it stands, and at both ends of what may be."""

    stated: tuple[Report, ...]
    slower: tuple[Report, ...]
    faster: tuple[Report, ...]

    @property
    def every(self) -> tuple[Report, ...]:
        return (*self.stated, *self.slower, *self.faster)

    @property
    def machines_lost(self) -> int:
        return sum(report.machines_lost for report in self.stated)


class SimulationMethod:
    """Simulates with a catalogue. given: everything that a hypothesis does not say."""

    def __init__(
        self,
        catalogue: Catalogue,
        given: Assumptions,
        progress: Progress = _untold,
    ) -> None:
        self._catalogue = catalogue
        self._given = given
        self._progress = progress

    def figures(self, hypothesis: Hypothesis) -> Figures:
        """Raises ConfigError for names that the catalogue does not know, and KeyboardInterrupt."""
        estimated = EstimateMethod(self._catalogue, self._given).figures(hypothesis)
        try:
            scenario = scenario_of(hypothesis, self._catalogue, self._given)
        except Unheld as error:
            return replace(estimated, method=NAME, holds=False, why_not=error.message)
        with self._progress(hypothesis.name) as told:
            runs = _run(scenario, hypothesis.terms.seed, hypothesis.terms.runs, told)
        simulated, lacking = _figures(runs)
        floor = estimated.known["token_time"]
        token_time = replace(simulated.get("token_time", floor), best=floor.best)
        return Figures(
            method=_title(scenario, hypothesis),
            holds=True,
            why_not=None,
            known={**estimated.known, **simulated, "token_time": token_time},
            server=estimated.server,
            lacking=lacking,
        )


def _run(scenario: Scenario, seed: int, num_runs: int, told: Told) -> _Runs:
    slower = scaled(scenario, times=TIMES_FACTOR, losses=CHURN_FACTOR)
    faster = scaled(scenario, times=1 / TIMES_FACTOR, losses=1 / CHURN_FACTOR)
    done, total_s = count(), 3 * num_runs * scenario.duration_s

    def run(wanted: Scenario, number: int) -> Report:
        before_s = next(done) * scenario.duration_s
        return _report(wanted, number, lambda done_s, _: told(before_s + done_s, total_s))

    stated, slow, fast = (
        tuple(run(wanted, number) for number in range(seed, seed + num_runs))
        for wanted in (scenario, slower, faster)
    )
    return _Runs(stated, slow, fast)


def _report(scenario: Scenario, seed: int, told: Told) -> Report:
    if scenario.mode is Mode.FINE:
        report = report_fine(FineSimulation(scenario, seed).run(told), seed)
    else:
        report = report_coarse(CoarseSimulation(scenario, seed).run(told), seed)
    if report.is_partial:
        raise KeyboardInterrupt  # a part of the runs would decide by chance
    return report


def _title(scenario: Scenario, hypothesis: Hypothesis) -> str:
    terms, cells = hypothesis.terms, scenario.num_cells
    seeds = (
        f"seed {terms.seed}" if terms.runs == 1 else f"seeds {terms.seed} to {terms.seed + terms.runs - 1}"
    )
    where = "one cell" if cells == 1 else f"{cells:,} cells"
    return f"{NAME} ({scenario.mode.value} mode, {where}, {seconds_text(scenario.duration_s)} a run, {seeds})"


# ---------------------------------------------------------------- what came of it


@dataclass(frozen=True, slots=True)
class _Figure:
    """read: from a report, None where it has none. coarse_factor: that it may be off by in the coarse mode.
    counted: requests that it is a share of; None for other figures. of_losses: it means
    nothing where hardly a machine was lost."""

    read: Callable[[Report], float | None]
    coarse_factor: float
    counted: Callable[[Report], int] | None = None
    of_losses: bool = False


def _waits(choose: Callable[[Report], Spread], share: str, gap: float, *, of_losses: bool = False) -> _Figure:
    """A percentile, or the mean, of times."""

    def read(report: Report) -> float | None:
        found = choose(report)
        return float(getattr(found, share)) if found.count else None

    return _Figure(read, 1 + gap, of_losses=of_losses)


def _share(outcome: str, counted: Callable[[Report], int], *, of_losses: bool) -> _Figure:
    def read(report: Report) -> float | None:
        total = counted(report)
        return report.outcomes[outcome] / total if total else None

    return _Figure(read, RARE_FACTOR, counted, of_losses)


def _ended(report: Report) -> int:
    return report.num_requests - report.outcomes["unfinished"]


def _taken_in(report: Report) -> int:
    return report.num_requests - report.outcomes["refused"]


def _cost(report: Report) -> float | None:
    cost = report.cost
    ways = [] if cost.rent_usd_per_million is None else [cost.rent_usd_per_million]
    if cost.hardware_usd_per_million is not None and cost.electricity_usd_per_million is not None:
        ways.append(cost.hardware_usd_per_million + cost.electricity_usd_per_million)
    return min(ways, default=None)


_FIGURES: Final[Mapping[str, _Figure]] = MappingProxyType(
    {
        "token_time": _waits(lambda r: r.token_s, "mean", TOKEN_GAP),
        "token_time_p90": _waits(lambda r: r.token_s, "p90", TOKEN_GAP),
        "token_time_p99": _waits(lambda r: r.token_s, "p99", TOKEN_GAP),
        "first_token": _waits(lambda r: r.first_token_s, "mean", FIRST_TOKEN_GAP),
        "first_token_p50": _waits(lambda r: r.first_token_s, "p50", FIRST_TOKEN_GAP),
        "first_token_p90": _waits(lambda r: r.first_token_s, "p90", FIRST_TOKEN_GAP),
        "first_token_p99": _waits(lambda r: r.first_token_s, "p99", FIRST_TOKEN_GAP),
        "stall_p50": _waits(lambda r: r.stalls_s, "p50", STALL_GAP, of_losses=True),
        "stall_p90": _waits(lambda r: r.stalls_s, "p90", STALL_GAP, of_losses=True),
        "throughput": _Figure(lambda r: r.tok_per_s, 1 + THROUGHPUT_GAP),
        "throughput_under_losses": _Figure(lambda r: r.tok_per_s, 1 + THROUGHPUT_GAP, of_losses=True),
        "cost_per_million": _Figure(_cost, 1 + THROUGHPUT_GAP),
        "answered": _share("answered", _ended, of_losses=True),
        "lost": _share("lost", _taken_in, of_losses=True),
        "refused": _share("refused", _ended, of_losses=False),
        "availability": _Figure(lambda r: r.availability, RARE_FACTOR, of_losses=True),
        "down_share": _Figure(lambda r: 1 - r.availability, RARE_FACTOR, of_losses=True),
    }
)


def _figures(runs: _Runs) -> tuple[dict[str, Known], dict[str, str]]:
    known: dict[str, Known] = {}
    lacking: dict[str, str] = {}
    for measure, figure in _FIGURES.items():
        found = (
            None if figure.of_losses and runs.machines_lost < NEEDED_LOSSES else _known(measure, figure, runs)
        )
        if found is not None:
            known[measure] = found
        elif figure.of_losses:
            lacking[measure] = (
                f"{runs.machines_lost} machines left during the runs; {NEEDED_LOSSES} are needed to tell, "
                "and a stall where it is asked for: simulate longer"
            )
        else:
            lacking[measure] = "no run had such a figure"
    return known, lacking


def _known(measure: str, figure: _Figure, runs: _Runs) -> Known | None:
    """From the lowest to the highest of all runs; in the coarse mode farther by its own error."""
    stated = [value for value in map(figure.read, runs.stated) if value is not None]
    if not stated:
        return None
    values = [value for value in map(figure.read, runs.every) if value is not None]
    low, high = min(values), max(values)
    why = f"from {TIMES_FACTOR:g} times faster with fewer losses to as much slower with more"
    if runs.stated[0].mode == Mode.COARSE.value:
        low, high = _wider(measure, low, high, figure.coarse_factor)
        why += "; coarse mode"
    if figure.counted is not None:
        low, high = _with_chance(low, high, sum(figure.counted(report) for report in runs.stated))
    if measure == "cost_per_million":
        low, high = low / COST_FACTOR, high * COST_FACTOR
    return Known(sum(stated) / len(stated), low, high, NAME, why)


def _wider(measure: str, low: float, high: float, factor: float) -> tuple[float, float]:
    if MEASURES[measure].is_near_one:
        return max(0.0, 1 - (1 - low) * factor), 1 - (1 - high) / factor
    return low / factor, high * factor


def _with_chance(low: float, high: float, num_counted: int) -> tuple[float, float]:
    """None of n seen says no more than that it is below 3 / n, with 95 % confidence; nor does all of n."""
    rare = SEEN_NONE / max(1, num_counted)
    return (min(low, 1 - rare) if low == 1 else low), (max(high, rare) if high == 0 else high)
