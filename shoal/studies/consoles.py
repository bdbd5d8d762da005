"""Study (a): Kimi K3 on 100,000 PS3s."""

from __future__ import annotations

from shoal.catalogue.loader import load_catalogue
from shoal.core.units import (
    bytes_text,
    count_text,
    digits_text,
    ops_text,
    power_text,
    rate_text,
    seconds_text,
    traffic_text,
    usd_text,
)
from shoal.planner.assumptions import default_assumptions
from shoal.planner.cluster import parse_cluster
from shoal.planner.estimate import Estimate, estimate_model
from shoal.planner.model_source import find_model
from shoal.planner.splits import SplitCost, compare_splits
from shoal.studies.page import Page, TableBlock

MACHINES = "100000xPS3"


def consoles() -> Page:
    known = load_catalogue()
    cluster = parse_cluster([MACHINES], known)
    model = find_model("kimi-k3", None, known)
    kind = cluster.members[0][0]
    link = known.link(kind.link)
    given = default_assumptions(known)
    found = estimate_model(cluster, model, link, given)
    splits = compare_splits(model, kind, link, row_value_bytes=given.row_value_bytes)
    one = found.one_stream
    assert one is not None
    best = min((s for s in splits if s.is_possible), key=lambda s: s.token_s, default=None)
    possible = "none of them can be held by such machines"
    if best is not None:
        possible = (
            f"the fastest that consoles can hold ({best.name}) takes {seconds_text(best.token_s)}, with "
            f"{best.rounds:,} rounds in which all of a group wait for the slowest, and "
            f"{traffic_text(best.wire_bytes)} on the wire for each token"
        )
    return Page(
        name="consoles",
        title="Kimi K3 on 100,000 PlayStation 3",
        summary=(
            "The memory is enough; that was never the question. Layer after layer, one token of one "
            "stream takes "
            f"{seconds_text(one.expected_s)} ({seconds_text(one.floor_s)} if every console reached its "
            "printed "
            f"bandwidth), of which hops are {seconds_text(one.hops_s)}: {one.machines:,} consoles work "
            "one after the "
            f"other. Of the ways to split, {possible}."
        ),
        tables=(_totals(found), _token(found), _splits(splits)),
        computed=(
            "Totals, bytes, stage and link times by `shoal.planner.cost_model` over the catalogue. A token "
            f"multiplies with {count_text(model.active_parameters)} parameters (the trunk and the chosen "
            "experts). "
            "What crosses a cut is K3's bank of residual rows; it grows along the model, so that late "
            "hops cost most."
        ),
        assumed=(
            "Even pieces that are cut anywhere, since no console holds a whole layer: no engine serves "
            "such "
            "pieces, so the first table is a bound in the thought experiment's favour. Consoles do not "
            "fail "
            f"here. Not verified in the catalogue: {'; '.join(found.unverified) or 'nothing'}."
        ),
        falsified_by=(
            "A measured hop between two consoles far below the stated latency and software time; a "
            "published "
            "engine that runs K3's layers in 200 MiB pieces; or a corrected number of active parameters or "
            "rows in the bank. Each changes one line of the catalogue, and this page with it."
        ),
    )


def _totals(found: Estimate) -> TableBlock:
    totals, model, upkeep = found.totals, found.model, found.upkeep
    assert model is not None
    rows = [
        ("Compute, as marketed", ops_text(totals.marketed_ops_per_s)),
        ("Compute, usable", ops_text(totals.usable_ops_per_s)),
        ("Memory", f"{bytes_text(totals.memory_bytes)}, {bytes_text(totals.usable_memory_bytes)} usable"),
        ("Memory bandwidth, summed", rate_text(totals.memory_bytes_per_s)),
        ("Power", power_text(totals.power_w)),
        ("Weights", f"{bytes_text(model.weight_bytes)} at {model.quantisation}"),
        (
            "Parameters",
            f"{count_text(model.parameters)}, of which a token uses {count_text(model.active_parameters)}",
        ),
        ("Largest layer", bytes_text(model.largest_layer_bytes)),
        ("Row across a cut", f"{model.min_payload_bytes:,} to {model.max_payload_bytes:,} B a token"),
    ]
    if upkeep is not None:
        rows.append(("Electricity per million tokens", usd_text(upkeep.electricity_usd_per_million)))
    return TableBlock("What there is, and what it is for", ("", ""), rows)


def _token(found: Estimate) -> TableBlock:
    one, many = found.one_stream, found.throughput
    assert one is not None
    assert many is not None
    rows = [
        ("Consoles in the chain", f"{one.machines:,}"),
        ("Reading memory, at printed bandwidth", seconds_text(one.floor_memory_s)),
        ("Hops", seconds_text(one.hops_s)),
        ("A token, at least", seconds_text(one.floor_s)),
        ("A token, expected", seconds_text(one.expected_s)),
        (f"A prompt of {one.prompt_tokens:,} tokens", seconds_text(one.prefill_s)),
        ("Over all links for a token", traffic_text(one.wire_bytes_per_token)),
        (
            f"All streams together ({many.full_streams:,})",
            f"{digits_text(many.full_tok_per_s)} tokens/s over {many.full_pipelines:,} pipelines",
        ),
    ]
    return TableBlock("A token, layer after layer in even pieces", ("", ""), rows)


def _splits(splits: tuple[SplitCost, ...]) -> TableBlock:
    rows = [
        (
            split.name,
            f"{split.machines:,}",
            f"{split.rounds:,}",
            traffic_text(split.wire_bytes),
            seconds_text(split.token_s),
            "yes" if split.is_possible else f"no: {split.reason}",
        )
        for split in splits
    ]
    columns = ("split", "consoles", "rounds a token", "wire a token", "a token", "can be held")
    return TableBlock("Layer, tensor and expert splits", columns, rows)
