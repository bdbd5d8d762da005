"""Hypotheses judged by estimate: the cost model and closed forms, with their stated error."""

from __future__ import annotations

import dataclasses
from typing import Final

from shoal.catalogue.loader import Catalogue
from shoal.core.units import DAY_S
from shoal.planner import recovery_arithmetic
from shoal.planner.assumptions import Assumptions
from shoal.planner.case import Asked, Case, make_case
from shoal.planner.cluster import Cluster, parse_cluster, slowest_link
from shoal.planner.hypothesis import Figures, Hypothesis, Known
from shoal.planner.model_demand import ModelDemand
from shoal.planner.model_source import find_model
from shoal.planner.reference_server import reference_server
from shoal.planner.upkeep import upkeep

NAME: Final = "estimate"
# Rooflines on published figures: tools of this kind report 10 to 40 % against measurements
# below saturation, and our catalogue's deratings are coarser than theirs.
TIMES_FACTOR: Final = 1.5
# Prices, and who leaves when, are known less well than times.
COST_FACTOR: Final = 2.0
CHURN_FACTOR: Final = 2.0


class EstimateMethod:
    """Estimates with a catalogue. given: everything that a hypothesis does not say."""

    def __init__(self, catalogue: Catalogue, given: Assumptions) -> None:
        self._catalogue = catalogue
        self._given = given

    def figures(self, hypothesis: Hypothesis) -> Figures:
        """Raises ConfigError for names that the catalogue does not know."""
        cluster = parse_cluster([hypothesis.machines], self._catalogue)
        model = find_model(hypothesis.model, hypothesis.quantisation, self._catalogue)
        given = dataclasses.replace(
            self._given,
            streams=hypothesis.streams,
            context_tokens=hypothesis.context_tokens,
            prompt_tokens=hypothesis.prompt_tokens,
        )
        case = self._case(hypothesis, cluster, model, given)
        holds = case.fits and case.pipeline.is_whole_layers
        why_not = case.why_not
        if case.fits and not holds:
            why_not = (
                "no machine holds a whole layer, so it could only be cut into pieces that no engine serves"
            )
        return Figures(
            method=NAME,
            holds=holds,
            why_not=why_not,
            known=_figures(case),
            server=self._server(hypothesis, model, given),
        )

    def _case(self, hypothesis: Hypothesis, cluster: Cluster, model: ModelDemand, given: Assumptions) -> Case:
        known = self._catalogue
        link = known.link(hypothesis.link) if hypothesis.link else slowest_link(cluster, known)
        failures = known.failure(hypothesis.failures)
        return make_case(cluster, model, link, given, Asked(), failures, None)

    def _server(self, hypothesis: Hypothesis, model: ModelDemand, given: Assumptions) -> dict[str, float]:
        if not any(claim.limit is None for claim in hypothesis.claims):
            return {}
        kind = self._catalogue.machine(hypothesis.against)
        found = reference_server(model, kind, self._catalogue, given)
        return {"cost_per_million": found.usd_per_million}


def _figures(case: Case) -> dict[str, Known]:
    pipeline, machines = case.pipeline, case.pipeline.num_machines
    losses = recovery_arithmetic.losses_per_s(case.failures, machines)
    outage = (
        case.assumptions.notice_s
        + recovery_arithmetic.refill_s(pipeline.slice_bytes, case.link.bytes_per_s)
        + pipeline.prefill_s(case.assumptions.context_tokens)
    )
    figures = {
        "token_time": Known.within(
            pipeline.token_s(), TIMES_FACTOR, NAME, best=pipeline.token_s(is_printed=True)
        ),
        "first_token": Known.within(pipeline.prefill_s(case.assumptions.prompt_tokens), TIMES_FACTOR, NAME),
        "throughput": Known.within(case.few.tok_per_s(case.assumptions.streams), TIMES_FACTOR, NAME),
        "power": Known.within(case.few.power_w, 1.0, NAME),
        "losses": Known.within(losses * DAY_S, CHURN_FACTOR, NAME),
        "down_share": Known.within(recovery_arithmetic.down_share(losses, outage), CHURN_FACTOR, NAME),
    }
    own = upkeep(case.deployment, case.assumptions)
    ways = [own.rent_usd_per_million]
    if own.hardware_usd_per_million is not None:
        ways.append(own.hardware_usd_per_million + own.electricity_usd_per_million)
    known = [way for way in ways if way is not None]
    if known:
        figures["cost_per_million"] = Known.within(min(known), COST_FACTOR, NAME)
    return figures
