"""Study (b): a net cafe of 100 PCs from opening to closing, with standbys 0, 1 and 2."""

from __future__ import annotations

from dataclasses import replace

from shoal.catalogue.loader import load_catalogue
from shoal.core.units import HOUR_S, digits_text, seconds_text
from shoal.planner.cluster import parse_cluster
from shoal.planner.model_source import find_model
from shoal.simulator.coarse import CoarseSimulation
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.plots import Line, Plot
from shoal.simulator.report import Report, report_coarse
from shoal.simulator.scenario import Churn, Mode, Scenario, Serving
from shoal.simulator.scenario_file import USUAL_NOTICE_S
from shoal.simulator.workload import Poisson, Workload
from shoal.studies.page import Page, TableBlock

OPENS_S = 9 * HOUR_S
CLOSES_S = 24 * HOUR_S
CELL = 20
STANDBYS = (0, 1, 2)
SEED = 1
STAGES = 4
RATE = 1.5  # requests a second


def net_cafe() -> Page:
    runs = {(standbys, polite): _run(standbys, polite) for polite in (0.0, 0.8) for standbys in STANDBYS}
    rows = [_row(standbys, polite, report) for (standbys, polite), (report, _) in runs.items()]
    lines = [
        Line(
            f"{standbys} standbys",
            [OPENS_S / HOUR_S + at_s / HOUR_S for at_s, _ in ready],
            [n for _, n in ready],
        )
        for (standbys, polite), (_, ready) in runs.items()
        if not polite
    ]
    none, one, two = (runs[standbys, 0.0][0] for standbys in STANDBYS)
    columns = (
        "standbys",
        "polite",
        "answered",
        "lost",
        "refused",
        "tokens/s",
        "token p50",
        "stalls",
        "stall p50",
        "stall p90",
    )
    return Page(
        name="net_cafe",
        title="A net cafe of 100 PCs, from opening to closing",
        summary=(
            "A dense 32B model on the PCs that have no guest. Machines leave when a guest sits down, so "
            "the evening "
            "takes what the morning gave. "
            f"Where machines vanish, half of the stalls are longer than {_text(none, 'p50')} without "
            f"standbys, than {_text(one, 'p50')} with one and than {_text(two, 'p50')} with two of every "
            f"stage; the slowest tenth is longer than {_text(none, 'p90')}, {_text(one, 'p90')} and "
            f"{_text(two, 'p90')}. Of the requests {_refused(none)} are refused "
            f"without standbys, {_refused(one)} with one and {_refused(two)} with two."
        ),
        tables=(TableBlock("From 9 in the morning to midnight", columns, rows),),
        computed=(
            f"Each row is a run of the coarse mode (seed {SEED}): 100 RTX 3060 PCs in cells of {CELL}, "
            "qwen3-32b at "
            f"q4_k_m, {RATE:g} requests a second with prompts of 256 tokens and answers of 150 on "
            "average. Lost: "
            "ended by "
            "an error after it was taken in."
        ),
        assumed=(
            "The catalogue's net-cafe profile (share of PCs without a guest by hour) and two-hour stays "
            "are not "
            "verified: no trustworthy measurement was found. PCs with a guest give nothing. All load from "
            "one "
            "gigabit switch without slowing each other."
        ),
        falsified_by=(
            "A week's log of a real cafe with other stays or another profile; a fine-mode run or a real "
            "cluster "
            "whose share of lost answers differs by more than 5 points; a switch that cannot feed several "
            "loads at "
            "once, which makes stalls longer."
        ),
        plots=(Plot("net_cafe", "Cells that answer", "hour of the day", "cells of 5", lines),),
    )


def _run(standbys: int, polite: float) -> tuple[Report, list[tuple[float, float]]]:
    simulation = CoarseSimulation(_scenario(standbys, polite), SEED)
    result = simulation.run()
    ready = [(point.at_s, float(point.cells_ready)) for point in result.timeline]
    return report_coarse(result, SEED), ready


def _scenario(standbys: int, polite: float) -> Scenario:
    known = load_catalogue()
    cluster = parse_cluster(["100xrtx-3060"], known)
    failures = known.failure("net-cafe")
    return Scenario(
        name=f"{standbys} standbys",
        mode=Mode.COARSE,
        cluster=cluster,
        model=find_model("qwen3-32b", "q4_k_m", known),
        link=known.link("gigabit"),
        duration_s=CLOSES_S - OPENS_S,
        serving=Serving(
            cell_machines=CELL, spares=CELL - STAGES, survive=standbys, streams=8, context_tokens=2048
        ),
        workload=Workload(Poisson(RATE), Fixed(256), Geometric(150, 1000)),
        churn=Churn(replace(failures), polite_share=polite, start_s=OPENS_S),
        load_bytes_per_s=known.link("gigabit").bytes_per_s,
        notice_s=USUAL_NOTICE_S,
        usd_per_kwh=known.price("electricity"),
        lifetime_s=known.price("hardware-lifetime"),
    )


def _row(standbys: int, polite: float, report: Report) -> tuple[str, ...]:
    num = max(1, report.num_requests)
    return (
        str(standbys),
        f"{polite:.0%}",
        f"{report.outcomes['answered'] / num:.1%}",
        f"{report.outcomes['lost'] / num:.2%}",
        _refused(report),
        digits_text(report.tok_per_s),
        seconds_text(report.token_s.p50) if report.token_s.count else "none",
        f"{report.stalls_s.count:,}",
        *(_text(report, share) for share in ("p50", "p90")),
    )


def _text(report: Report, share: str) -> str:
    found = report.stalls_s
    if not found.count:
        return "none"
    return seconds_text(found.p50 if share == "p50" else found.p90)


def _refused(report: Report) -> str:
    return f"{report.outcomes['refused'] / max(1, report.num_requests):.1%}"
