"""Study (e): throughput, latency and cost from 8 machines to 100,000, and the coarse mode's error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.catalogue.loader import load_catalogue
from shoal.core.units import DAY_S, MINUTE_S, digits_text, seconds_text
from shoal.planner.cluster import parse_cluster
from shoal.planner.model_source import find_model
from shoal.planner.recovery_arithmetic import chain_availability
from shoal.simulator.coarse import CoarseSimulation
from shoal.simulator.fine import FineSimulation
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.plots import Line, Plot
from shoal.simulator.report import Report, report_coarse, report_fine
from shoal.simulator.scenario import Churn, Mode, Scenario, Serving
from shoal.simulator.scenario_file import USUAL_NOTICE_S
from shoal.simulator.workload import Poisson, Trace, Workload
from shoal.studies.page import Page, TableBlock

SIZES = (8, 16, 64, 256, 1024, 4096, 16384, 100_000)
CHECKED = ((16, 240.0), (64, 120.0), (256, 40.0))  # machines, seconds
CELL = 16
LOAD_PER_MACHINE = 1 / 200  # requests a second: about a third of what a cell can do
CURVE_S = 20 * MINUTE_S
CHECK_LOAD_PER_MACHINE = 1 / 50  # more than a cell can do, so that speed decides and not the draw of lengths
SEED = 1


def scale() -> Page:
    reports = {
        size: report_coarse(CoarseSimulation(_scenario(size, CURVE_S), SEED).run(), SEED) for size in SIZES
    }
    day = report_coarse(CoarseSimulation(_scenario(SIZES[-1], DAY_S), SEED).run(), SEED)
    sizes = [float(size) for size in SIZES]
    return Page(
        name="scale",
        title="From 8 machines to 100,000: cells behind gateways",
        summary=(
            "Throughput grows in proportion to machines, and latency stays where one cell puts it, "
            "because no "
            "request ever crosses a cell: that is why cells, and not one long pipeline, are the way up. "
            "The curve "
            f"bends once, at one cell ({CELL} machines): below it there are fewer stages and fewer "
            "spares; above it "
            "only copies are added. One pipeline over all machines bends there too, and falls: a token "
            "would "
            "wait for every hop, and the chain is complete only while every machine is there (last column)."
        ),
        tables=(_curve(reports), _day(day), _check()),
        computed=(
            "llama-70b at q4_k_m on RTX 3060 PCs that fail as the catalogue's consumer PCs, cells of "
            f"{CELL} with 8 "
            f"stages, {seconds_text(CURVE_S)} each and one whole day with 100,000, coarse mode, seed "
            f"{SEED}. The "
            "check runs the same requests, more than the cells can answer, through both modes."
        ),
        assumed=(
            "Gateways of 64 cells that themselves cost no time; requests spread evenly over gateways; "
            "nothing shared "
            "between cells (no common switch, power or model store), so rooms do not fail here."
        ),
        falsified_by=(
            "A gap between the modes above the allowed 15 % in throughput or 20 % in time from token to "
            "token, in this "
            "table or in tests/unit/simulator/test_coarse.py; a gateway that saturates below the rate of "
            "64 cells."
        ),
        plots=(
            _plot(
                "scale_throughput",
                "tokens a second",
                sizes,
                [r.tok_per_s for r in reports.values()],
                log=True,
            ),
            _plot(
                "scale_latency",
                "seconds from token to token",
                sizes,
                [r.token_s.mean for r in reports.values()],
            ),
            _plot(
                "scale_cost",
                "USD of electricity per million tokens",
                sizes,
                [_usd(r) for r in reports.values()],
            ),
        ),
    )


def _scenario(num_machines: int, duration_s: float) -> Scenario:
    known = load_catalogue()
    cell = min(CELL, num_machines)
    return Scenario(
        name=f"{num_machines} machines",
        mode=Mode.COARSE,
        cluster=parse_cluster([f"{num_machines}xrtx-3060"], known),
        model=find_model("llama-70b", "q4_k_m", known),
        link=known.link("gigabit"),
        duration_s=duration_s,
        serving=Serving(
            cell_machines=cell,
            spares=cell // 4 if cell < CELL else 8,
            survive=1,
            streams=8,
            context_tokens=1024,
        ),
        workload=Workload(Poisson(num_machines * LOAD_PER_MACHINE), Fixed(256), Geometric(100, 500)),
        churn=Churn(known.failure("consumer-pc"), all_present=False),
        load_bytes_per_s=known.link("gigabit").bytes_per_s,
        notice_s=USUAL_NOTICE_S,
        usd_per_kwh=known.price("electricity"),
        lifetime_s=known.price("hardware-lifetime"),
    )


def _usd(report: Report) -> float:
    return report.cost.electricity_usd_per_million or 0.0


def _curve(reports: dict[int, Report]) -> TableBlock:
    availability = load_catalogue().failure("consumer-pc").availability
    rows = [
        (
            f"{size:,}",
            digits_text(report.tok_per_s),
            digits_text(report.tok_per_s / size),
            seconds_text(report.first_token_s.p50),
            seconds_text(report.token_s.mean),
            digits_text(_usd(report)),
            f"{report.outcomes['lost']:,}",
            f"{chain_availability(availability, size):.2%}",
        )
        for size, report in reports.items()
    ]
    columns = (
        *(
            "machines",
            "tokens/s",
            "a machine",
            "first token",
            "token to token",
            "USD electricity per million",
        ),
        *("lost", "one pipeline of all complete"),
    )
    return TableBlock("The curve", columns, rows)


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
    for size, seconds in CHECKED:
        light_fine, light_coarse = _both(size, seconds, LOAD_PER_MACHINE)
        full_fine, full_coarse = _both(size, seconds, CHECK_LOAD_PER_MACHINE)
        rows.append(
            (
                f"{size:,}",
                f"{full_coarse.tok_per_s / full_fine.tok_per_s - 1:+.1%}",
                f"{full_coarse.token_s.mean / full_fine.token_s.mean - 1:+.1%}",
                f"{100 * (full_coarse.busy - full_fine.busy):+.1f}",
                f"{light_coarse.token_s.mean / light_fine.token_s.mean - 1:+.1%}",
                f"{light_coarse.first_token_s.p50 / light_fine.first_token_s.p50 - 1:+.1%}",
            )
        )
    columns = (
        *("machines", "overloaded: tokens/s", "token to token", "stages busy, points"),
        *("lightly loaded: token to token", "first token, median"),
    )
    return TableBlock("The coarse mode's error: the same requests in the fine mode", columns, rows)


def _both(size: int, seconds: float, load_per_machine: float) -> tuple[Report, Report]:
    wanted = replace(_scenario(size, seconds), mode=Mode.FINE, churn=None)
    workload = replace(wanted.workload, pattern=Poisson(size * load_per_machine))
    arrivals = tuple(workload.arrivals(seconds, np.random.default_rng(SEED)))
    wanted = replace(wanted, workload=replace(workload, pattern=Trace(arrivals)))
    fine = report_fine(FineSimulation(wanted, SEED).run(), SEED)
    coarse = report_coarse(CoarseSimulation(replace(wanted, mode=Mode.COARSE), SEED).run(), SEED)
    return fine, coarse


def _plot(name: str, label: str, sizes: list[float], values: list[float], *, log: bool = False) -> Plot:
    return Plot(name, label, "machines", label, (Line(label, sizes, values),), is_x_log=True, is_y_log=log)
