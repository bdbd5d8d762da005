"""Study (d): the checklist for old phones, routers and mining cards."""

from __future__ import annotations

from importlib.resources import as_file, files

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.planner.assess import Assessment, assess
from shoal.planner.assumptions import default_assumptions
from shoal.planner.case import Asked
from shoal.planner.cluster import parse_cluster, slowest_link
from shoal.planner.model_source import find_model
from shoal.planner.reference_server import reference_server
from shoal.studies.page import Page, TableBlock

CASES = (
    ("20 old phones, a 3B model", "20xold-phone", "llama-3.2-3b", "volunteer"),
    ("1,000 home routers, a 7B model", "1000xhome-router", "llama-7b", "always-on"),
    ("12 mining cards, a 30B-A3B model", "12xmining-card", "qwen3-30b-a3b", "always-on"),
)


def cast_off() -> Page:
    with as_file(files("shoal.studies") / "cast_off.toml") as path:
        known = load_catalogue([path])
    found = [(title, _assess(known, machines, model, failures)) for title, machines, model, failures in CASES]
    return Page(
        name="cast_off",
        title="Old phones, routers, mining cards: the checklist",
        summary=(
            "The same six checks that `shoal assess` makes for any cluster, for machines that people have "
            "anyway. "
            "Asked: 200 ms a token, 99 % of the time, ten losses a day, cheaper than a rented H100."
        ),
        tables=tuple(_table(title, assessment) for title, assessment in found),
        computed="Verdicts and margins by `shoal.planner.assess`, at q4_k_m, 8 streams of 4,096 tokens.",
        assumed=(
            "Every figure of these machines is a typical maker's figure and not verified "
            "(shoal/studies/cast_off.toml). "
            "That Shoal's workers run there at all is assumed: routers have no room for it today, phones "
            "throttle when "
            "warm, and some mining cards have reduced arithmetic or one PCIe lane."
        ),
        falsified_by=(
            "A measured memory bandwidth or hop that turns a verdict: the last column says which figure "
            "would have to "
            "become what."
        ),
    )


def _assess(known: Catalogue, machines: str, model: str, failures: str) -> Assessment:
    cluster = parse_cluster([machines], known)
    given = default_assumptions(known)
    demand = find_model(model, "q4_k_m", known)
    reference = reference_server(demand, known.machine("h100"), known, given)
    link = slowest_link(cluster, known)
    return assess(cluster, demand, link, given, Asked(), known.failure(failures), reference)


def _table(title: str, found: Assessment) -> TableBlock:
    rows = [(check.question, check.verdict.value, check.answer, check.turn) for check in found.checks]
    return TableBlock(title, ("check", "verdict", "why", "what would turn it"), rows)
