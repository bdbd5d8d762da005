"""Study (e): throughput, latency and cost from 8 machines to 100,000, and the coarse mode's error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

import numpy as np

from shoal.catalogue.loader import load_catalogue
from shoal.core.units import DAY_S, MINUTE_S, digits_text, seconds_text
from shoal.planner.cluster import parse_cluster
from shoal.planner.model_source import find_model
from shoal.planner.recovery_arithmetic import chain_availability
from shoal.simulator.cell_plan import make_layouts
from shoal.simulator.coarse import CoarseSimulation
from shoal.simulator.coarse_error import FIRST_TOKEN_GAP, THROUGHPUT_GAP, TOKEN_GAP
from shoal.simulator.fine import FineSimulation
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.plots import Line, Plot
from shoal.simulator.report import Report, report_coarse, report_fine
from shoal.simulator.scenario import Churn, Mode, Scenario, Serving
from shoal.simulator.scenario_file import USUAL_NOTICE_S
from shoal.simulator.workload import Poisson, Trace, Workload
from shoal.studies.page import Page, TableBlock

SIZES = (8, 16, 64, 256, 1024, 4096, 16384, 100_000)
# Machines, seconds, streams a machine.
CHECKED = ((16, 240.0, 1), (64, 120.0, 1), (256, 120.0, 1), (16, 240.0, 4))
CELL = 16
STREAMS_PER_MACHINE = 1  # of a cell, and of one pipeline over all
MODEL = ("llama-70b", "q4_k_m")
LIGHT = 1 / 60  # requests a second and machine: less than half of what a cell can do
FULL = 1 / 10  # more than a cell can do, so that speed decides and not the draw of lengths
CURVE_S = 20 * MINUTE_S
SEED = 1
BENDS_BELOW = log(1.5) / log(2)  # twice the machines bring less than 1.5 times the tokens


@dataclass(frozen=True, slots=True)
class Single:
    """One pipeline over all machines, balanced: what scaling without cells would be."""

    num_stages: int
    tok_per_s: float
    token_s: float
    whole_share: float


def scale() -> Page:
    light = {size: _run(size, CURVE_S, LIGHT) for size in SIZES}
    full = {size: _run(size, CURVE_S, FULL) for size in SIZES}
    single = {size: _single(size) for size in SIZES}
    sizes = [float(size) for size in SIZES]
    return Page(
        name="scale",
        title="From 8 machines to 100,000: cells behind gateways",
        summary=_summary(full, light, single),
        tables=(
            _curve(full, light, single),
            _bends(full, single),
            _day(_run(SIZES[-1], DAY_S, LIGHT)),
            _check(),
        ),
        computed=(
            "llama-70b at q4_k_m on RTX 3060 PCs that fail as the catalogue's consumer PCs, cells of "
            f"{CELL}, {seconds_text(CURVE_S)} each and one whole day with 100,000, coarse mode, seed "
            f"{SEED}. Throughput and cost with more requests than cells can answer ({FULL:g} a second "
            f"and machine), latency with {LIGHT:g}. One pipeline by the cost model, times the share of the "
            "time that every one of its machines is there. The check runs the same requests through both "
            "modes."
        ),
        assumed=(
            "Gateways of 64 cells that themselves cost no time; requests spread evenly over gateways; "
            "nothing shared between cells (no common switch, power or model store), so rooms do not fail "
            "here. One pipeline over all has one link between any two neighbours, and nothing to replace a "
            "machine with."
        ),
        falsified_by=(
            f"A gap between the modes above {THROUGHPUT_GAP:.0%} in throughput, {TOKEN_GAP:.0%} in time from "
            f"token to token or {FIRST_TOKEN_GAP:.0%} in the time to the first token, in this table or in "
            "tests/unit/simulator/test_coarse.py, with one stream a machine; with four, the last row, an "
            "overloaded coarse cell is known to be too fast. A gateway that saturates below the rate of 64 "
            "cells."
        ),
        plots=(
            Plot(
                "scale_throughput",
                "Tokens a second",
                "machines",
                "tokens a second",
                (
                    Line("cells", sizes, [report.tok_per_s for report in full.values()]),
                    Line("one pipeline", sizes, [max(one.tok_per_s, 1e-3) for one in single.values()]),
                ),
                is_x_log=True,
                is_y_log=True,
            ),
            Plot(
                "scale_latency",
                "Seconds from token to token",
                "machines",
                "seconds",
                (
                    Line("cells", sizes, [report.token_s.mean for report in light.values()]),
                    Line("one pipeline", sizes, [one.token_s for one in single.values()]),
                ),
                is_x_log=True,
            ),
            Plot(
                "scale_cost",
                "USD of electricity per million tokens",
                "machines",
                "USD",
                (Line("cells", sizes, [_usd(report) for report in full.values()]),),
                is_x_log=True,
            ),
        ),
    )


def _run(num_machines: int, duration_s: float, load: float) -> Report:
    return report_coarse(CoarseSimulation(_scenario(num_machines, duration_s, load), SEED).run(), SEED)


def _single(num_machines: int) -> Single:
    wanted = _scenario(num_machines, CURVE_S, FULL)
    kind = wanted.cluster.members[0][0]
    used = min(num_machines, wanted.model.num_layers)
    pipeline = make_layouts(wanted).balance([kind] * used)
    assert pipeline is not None
    whole = chain_availability(load_catalogue().failure("consumer-pc").availability, pipeline.num_machines)
    rate = pipeline.decode_tok_per_s(STREAMS_PER_MACHINE * num_machines)
    return Single(pipeline.num_machines, rate * whole, pipeline.token_s(), whole)


# ---------------------------------------------------------------- where it bends


def elasticity(smaller: tuple[float, float], larger: tuple[float, float]) -> float:
    """By how many powers of itself the result grows with the machines: 1 where twice the machines bring twice
    as much. Pairs of (machines, result)."""
    return log(larger[1] / smaller[1]) / log(larger[0] / smaller[0])


def bends(curve: dict[int, float]) -> list[tuple[int, int, float]]:
    """(from, to, elasticity) of the parts where twice the machines bring less than 1.5 times as much."""
    found = []
    for small, large in pairwise(curve):
        grown = elasticity((small, curve[small]), (large, curve[large]))
        if grown < BENDS_BELOW:
            found.append((small, large, grown))
    return found


def _scenario(
    num_machines: int, duration_s: float, load: float, streams_a_machine: int = STREAMS_PER_MACHINE
) -> Scenario:
    known = load_catalogue()
    cell = min(CELL, num_machines)
    return Scenario(
        name=f"{num_machines} machines",
        mode=Mode.COARSE,
        cluster=parse_cluster([f"{num_machines}xrtx-3060"], known),
        model=find_model(*MODEL, known),
        link=known.link("gigabit"),
        duration_s=duration_s,
        serving=Serving(
            cell_machines=cell,
            spares=cell // 4,
            survive=1,
            streams=streams_a_machine * cell,
            context_tokens=1024,
        ),
        workload=Workload(Poisson(num_machines * load), Fixed(256), Geometric(100, 500)),
        churn=Churn(known.failure("consumer-pc"), all_present=False),
        load_bytes_per_s=known.link("gigabit").bytes_per_s,
        notice_s=USUAL_NOTICE_S,
        usd_per_kwh=known.price("electricity"),
        lifetime_s=known.price("hardware-lifetime"),
    )


def _usd(report: Report) -> float:
    return report.cost.electricity_usd_per_million or 0.0


def _summary(full: dict[int, Report], light: dict[int, Report], single: dict[int, Single]) -> str:
    largest = SIZES[-1]
    in_cells = {size: report.tok_per_s for size, report in full.items()}
    found = bends(in_cells)
    where = "; ".join(f"between {small:,} and {large:,} machines" for small, large, _ in found)
    cells = f"bends {where}" if found else f"does not bend up to {largest:,} machines"
    by_machine = [in_cells[size] / size for size in SIZES]
    first = [report.first_token_s.p50 for report in light.values()]
    bent = bends({size: one.tok_per_s for size, one in single.items()})
    ahead = next((size for size in SIZES if in_cells[size] > single[size].tok_per_s), None)
    overtaken = "never overtaken by cells" if ahead is None else f"overtaken by cells at {ahead:,}"
    num_layers = find_model(*MODEL, load_catalogue()).num_layers
    return (
        f"In cells the curve {cells}: a machine brings {digits_text(min(by_machine))} to "
        f"{digits_text(max(by_machine))} tokens/s at every size, and the first token comes after "
        f"{seconds_text(min(first))} to {seconds_text(max(first))}, because no request ever crosses a cell "
        f"and beyond {CELL} machines only copies are added. One pipeline over all machines bends from "
        f"{bent[0][0]:,} machines on: of {num_layers} layers and the head no balanced pipeline makes more "
        f"than {single[largest].num_stages} stages, so further machines carry nothing, and only more "
        "streams in a step still help. It ends at "
        f"{digits_text(single[largest].tok_per_s)} tokens/s at most, {overtaken}; and it stands while none "
        f"of its machines is away, {single[largest].whole_share:.1%} "
        "of the time."
    )


def _curve(full: dict[int, Report], light: dict[int, Report], single: dict[int, Single]) -> TableBlock:
    rows = [
        (
            f"{size:,}",
            digits_text(report.tok_per_s),
            digits_text(report.tok_per_s / size),
            seconds_text(light[size].first_token_s.p50),
            seconds_text(light[size].token_s.mean),
            digits_text(_usd(report)),
            f"{light[size].outcomes['lost']:,}",
            f"{single[size].num_stages}",
            digits_text(single[size].tok_per_s),
            f"{single[size].whole_share:.2%}",
        )
        for size, report in full.items()
    ]
    columns = (
        *("machines", "tokens/s", "a machine", "first token", "token to token"),
        *("USD electricity per million", "lost", "one pipeline: stages", "tokens/s at most", "is whole"),
    )
    return TableBlock("The curve", columns, rows)


def _bends(full: dict[int, Report], single: dict[int, Single]) -> TableBlock:
    """Elasticity of throughput from each size to the next."""
    rows = []
    for small, large in pairwise(SIZES):
        cells = elasticity((small, full[small].tok_per_s), (large, full[large].tok_per_s))
        one = elasticity((small, single[small].tok_per_s), (large, single[large].tok_per_s))
        texts = [f"{grown:.2f}{' (bends)' if grown < BENDS_BELOW else ''}" for grown in (cells, one)]
        rows.append((f"{small:,} to {large:,}", *texts))
    return TableBlock(
        "Where it bends",
        ("machines", "cells", "one pipeline"),
        rows,
        f"Growth of throughput over growth of machines, as powers: 1 is in proportion. Below "
        f"{BENDS_BELOW:.2f}, where twice the machines bring less than 1.5 times the tokens, the curve bends.",
    )


def _day(report: Report) -> TableBlock:
    rows = [
        ("Requests", f"{report.num_requests:,}"),
        ("Answered", f"{report.outcomes['answered']:,}"),
        ("Lost", f"{report.outcomes['lost']:,}"),
        ("Refused", f"{report.outcomes['refused']:,}"),
        ("Machines that left", f"{report.machines_lost:,}"),
        ("Stalls", f"{report.stalls_s.count:,}, median {seconds_text(report.stalls_s.p50)}"),
        ("Throughput", f"{digits_text(report.tok_per_s)} tokens/s"),
        ("Energy", f"{digits_text(report.cost.energy_kwh)} kWh"),
    ]
    return TableBlock("100,000 machines for one day", ("", ""), rows)


def _check() -> TableBlock:
    rows = []
    for size, seconds, streams in CHECKED:
        light_fine, light_coarse = _both(size, seconds, LIGHT, streams)
        full_fine, full_coarse = _both(size, seconds, FULL * streams, streams)
        rows.append(
            (
                f"{size:,}",
                f"{streams * CELL}",
                f"{full_coarse.tok_per_s / full_fine.tok_per_s - 1:+.1%}",
                f"{full_coarse.token_s.mean / full_fine.token_s.mean - 1:+.1%}",
                f"{full_coarse.first_token_s.p50 / full_fine.first_token_s.p50 - 1:+.1%}",
                f"{100 * (full_coarse.busy - full_fine.busy):+.1f}",
                f"{light_coarse.token_s.mean / light_fine.token_s.mean - 1:+.1%}",
                f"{light_coarse.first_token_s.p50 / light_fine.first_token_s.p50 - 1:+.1%}",
            )
        )
    columns = (
        *("machines", "streams a cell", "overloaded: tokens/s", "token to token", "first token, median"),
        *("stages busy, points", "lightly loaded: token to token", "first token, median"),
    )
    return TableBlock("The coarse mode's error: the same requests in the fine mode", columns, rows)


def _both(size: int, seconds: float, load: float, streams: int) -> tuple[Report, Report]:
    wanted = replace(_scenario(size, seconds, load, streams), mode=Mode.FINE, churn=None)
    arrivals = tuple(wanted.workload.arrivals(seconds, np.random.default_rng(SEED)))
    wanted = replace(wanted, workload=replace(wanted.workload, pattern=Trace(arrivals)))
    fine = report_fine(FineSimulation(wanted, SEED).run(), SEED)
    coarse = report_coarse(CoarseSimulation(replace(wanted, mode=Mode.COARSE), SEED).run(), SEED)
    return fine, coarse
