"""Four questions and six checks about a model on a cluster, each with numbers, formula and verdict.

Pure. Where the cluster cannot hold the model, the questions are still answered, for a single chain over
machines of its commonest kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.catalogue.failure import FailureModel
from shoal.catalogue.machine import LinkKind
from shoal.planner.assumptions import Assumptions
from shoal.planner.case import Asked, make_case
from shoal.planner.checklist import checklist
from shoal.planner.cluster import Cluster
from shoal.planner.estimate import ModelFacts, Totals, model_facts, totals, unverified
from shoal.planner.finding import Finding
from shoal.planner.model_demand import ModelDemand
from shoal.planner.questions import four_questions
from shoal.planner.reference_server import Reference
from shoal.planner.splits import SplitCost


@dataclass(frozen=True, slots=True)
class Assessment:
    """fits: whether the cluster holds the model in some way; why_not otherwise."""

    cluster: str
    link: str
    totals: Totals
    model: ModelFacts
    asked: Asked
    failures: str
    reference: Reference | None
    fits: bool
    why_not: str | None
    questions: tuple[Finding, ...]
    checks: tuple[Finding, ...]
    splits: tuple[SplitCost, ...]
    split_kind: str
    unverified: tuple[str, ...]


def assess(
    cluster: Cluster,
    model: ModelDemand,
    link: LinkKind,
    assumptions: Assumptions,
    asked: Asked,
    failures: FailureModel,
    reference: Reference | None,
) -> Assessment:
    """Raises nothing for a cluster that is too small: that is an answer."""
    case = make_case(cluster, model, link, assumptions, asked, failures, reference)
    return Assessment(
        cluster=str(cluster),
        link=link.title,
        totals=totals(cluster),
        model=model_facts(model, assumptions),
        asked=asked,
        failures=failures.title,
        reference=reference,
        fits=case.fits,
        why_not=case.why_not,
        questions=four_questions(case),
        checks=checklist(case),
        splits=case.splits,
        split_kind=case.kind.title,
        unverified=(*unverified(cluster, link), *_unverified_failures(failures)),
    )


def _unverified_failures(failures: FailureModel) -> tuple[str, ...]:
    fields = [name for name, origin in failures.provenance.items() if origin.is_unverified]
    return (f"{failures.title}: {', '.join(fields)}",) if fields else ()
