"""The scenario that a hypothesis asks to be simulated: cells that hold the model, a mode by size."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shoal.catalogue.failure import FailureModel
from shoal.catalogue.loader import Catalogue
from shoal.core.errors import ConfigError
from shoal.core.units import DAY_S, MINUTE_S
from shoal.planner import recovery_arithmetic
from shoal.planner.assumptions import Assumptions
from shoal.planner.cluster import Cluster, parse_cluster, slowest_link
from shoal.planner.hypothesis import Hypothesis
from shoal.planner.hypothesis_estimate import TIMES_FACTOR
from shoal.planner.model_source import find_model
from shoal.simulator.cell_plan import CellPlan, plan_cell
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.scenario import LARGEST_FINE, Churn, Mode, Scenario, Serving
from shoal.simulator.scenario_file import DEFAULT_CELL, USUAL_NOTICE_S
from shoal.simulator.workload import Closed, Poisson, Workload

SHORTEST_S: Final = 10 * MINUTE_S
LONGEST_S: Final = DAY_S
WANTED_LOSSES: Final = 30  # in one run, where nobody says how long
MOST_FINE_STEPS: Final = 100_000  # of stages, in one run: about ten seconds of computing
LONGEST_ANSWER: Final = 8  # times the mean


class Unheld(ConfigError):
    """No cell of the cluster holds the model."""

    code = "held_nowhere"


def scenario_of(hypothesis: Hypothesis, catalogue: Catalogue, given: Assumptions) -> Scenario:
    """Raises Unheld where no cell holds the model, ConfigError for unknown names and impossible terms."""
    terms = hypothesis.terms
    cluster = parse_cluster([hypothesis.machines], catalogue)
    link = catalogue.link(hypothesis.link) if hypothesis.link else slowest_link(cluster, catalogue)
    failures = catalogue.failure(hypothesis.failures)
    longest = min(LONGEST_ANSWER * terms.answer_tokens, hypothesis.context_tokens - hypothesis.prompt_tokens)
    if longest < terms.answer_tokens:
        raise ConfigError(
            f"{hypothesis.name}: a prompt of {hypothesis.prompt_tokens} tokens and an answer of "
            f"{terms.answer_tokens} do not fit the context of {hypothesis.context_tokens}."
        )
    pattern = Closed(hypothesis.streams) if terms.arrivals_per_s is None else Poisson(terms.arrivals_per_s)
    scenario = Scenario(
        name=hypothesis.name,
        mode=Mode.FINE,
        cluster=cluster,
        model=find_model(hypothesis.model, hypothesis.quantisation, catalogue),
        link=link,
        duration_s=terms.duration_s or _duration_s(failures, cluster),
        serving=Serving(
            cell_machines=1, streams=hypothesis.streams, context_tokens=hypothesis.context_tokens
        ),
        workload=Workload(pattern, Fixed(hypothesis.prompt_tokens), Geometric(terms.answer_tokens, longest)),
        churn=Churn(
            failures, all_present=terms.is_all_present, polite_share=terms.polite_share, start_s=terms.start_s
        ),
        load_bytes_per_s=link.bytes_per_s,
        notice_s=USUAL_NOTICE_S,
        usd_per_kwh=given.usd_per_kwh,
        lifetime_s=given.lifetime_s,
    )
    scenario, plan = _with_cells(scenario, hypothesis)
    return replace(scenario, mode=_mode(scenario, plan, hypothesis))


def _duration_s(failures: FailureModel, cluster: Cluster) -> float:
    """Long enough to see losses, as far as they come within a day."""
    return min(
        LONGEST_S,
        max(SHORTEST_S, WANTED_LOSSES / recovery_arithmetic.losses_per_s(failures, cluster.num_machines)),
    )


def _with_cells(scenario: Scenario, hypothesis: Hypothesis) -> tuple[Scenario, CellPlan]:
    """The smallest cells that hold the model, unless the hypothesis says how large they are."""
    terms, machines = hypothesis.terms, scenario.cluster.num_machines
    sizes = [machines if machines < 2 * DEFAULT_CELL else DEFAULT_CELL]
    while sizes[-1] < machines:
        sizes.append(min(2 * sizes[-1], machines))
    if terms.cell_machines is not None:
        if terms.cell_machines > machines:
            raise ConfigError(
                f"{hypothesis.name}: cell_machines is {terms.cell_machines}, of {machines} machines."
            )
        sizes = [terms.cell_machines]
    kinds = [kind for kind, number in scenario.cluster.members for _ in range(number)]
    why_not: ConfigError | None = None
    for size in sizes:
        spares = min(terms.survive, size - 1) if terms.spares is None else terms.spares
        if spares >= size:
            raise ConfigError(f"{hypothesis.name}: {spares} spares leave none of {size} machines to serve.")
        serving = replace(scenario.serving, cell_machines=size, spares=spares, survive=terms.survive)
        wanted = replace(scenario, serving=serving)
        try:
            return wanted, plan_cell(wanted, kinds[:size], 0)
        except ConfigError as error:
            why_not = error
    assert why_not is not None, "there is at least one size"
    raise Unheld(why_not.message)


def _mode(scenario: Scenario, plan: CellPlan, hypothesis: Hypothesis) -> Mode:
    """Fine where that takes seconds: few machines, and not too many steps of stages."""
    if hypothesis.terms.mode is not None:
        return Mode(hypothesis.terms.mode)
    stages, pattern = len(plan.ranges), scenario.workload.pattern
    steps_per_s = scenario.num_cells * min(hypothesis.streams, stages + 1) / plan.pipeline.token_s()
    if isinstance(pattern, Poisson):
        steps_per_s = min(steps_per_s, pattern.per_s * hypothesis.terms.answer_tokens)
    # Faster machines make more steps.
    num_steps = steps_per_s * TIMES_FACTOR * stages * scenario.duration_s
    is_small = scenario.cluster.num_machines <= LARGEST_FINE and num_steps <= MOST_FINE_STEPS
    return Mode.FINE if is_small else Mode.COARSE
