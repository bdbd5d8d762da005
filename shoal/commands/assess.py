"""`shoal assess`: four questions and six checks, each with numbers, verdict, formula and turning point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from shoal.commands.foresight import (
    CatalogueOption,
    ContextOption,
    ElectricityOption,
    JsonOption,
    LinkOption,
    MachinesOption,
    PromptOption,
    QuantOption,
    StreamsOption,
    UsedOption,
    check_machines,
    choose_link,
    console,
    make_assumptions,
    open_catalogue,
    print_json,
    remarks_block,
    section,
    share_of,
)
from shoal.core.errors import ConfigError
from shoal.core.units import Dimension, parse, seconds_text, traffic_text
from shoal.planner.assess import Assessment, assess
from shoal.planner.case import Asked
from shoal.planner.cluster import parse_cluster
from shoal.planner.finding import Finding, Verdict
from shoal.planner.model_source import find_model
from shoal.planner.reference_server import reference_server
from shoal.planner.splits import SplitCost

STYLES = {Verdict.YES: "green", Verdict.NO: "red", Verdict.CLOSE: "yellow", Verdict.UNKNOWN: "dim"}


def assess_command(
    machines: MachinesOption = [],  # noqa: B006 - typer copies it
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="A catalogue name, .gguf file or config.json."),
    ] = None,
    quant: QuantOption = None,
    link: LinkOption = None,
    context: ContextOption = 4096,
    prompt: PromptOption = 1024,
    streams: StreamsOption = 8,
    latency: Annotated[
        str, typer.Option("--latency", metavar="TIME", help="Time asked for between two tokens of a stream.")
    ] = "200 ms",
    losses_per_day: Annotated[
        float, typer.Option("--losses-per-day", min=0.001, help="Machine losses a day that you accept.")
    ] = 10.0,
    availability: Annotated[
        str, typer.Option("--availability", metavar="SHARE", help="Share of time with a complete chain.")
    ] = "99 %",
    failures: Annotated[
        str, typer.Option("--failures", metavar="NAME", help="How machines leave: always-on, net-cafe, ...")
    ] = "always-on",
    against: Annotated[
        str, typer.Option("--against", metavar="KIND", help="The GPU of the rented server to compare with.")
    ] = "h100",
    used: UsedOption = "100 %",
    usd_per_kwh: ElectricityOption = None,
    catalogue: CatalogueOption = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Ask the questions that total memory does not answer.

    \b
    shoal assess --machines 100000xPS3 --model kimi-k3
    shoal assess --machines 100xrtx-3060 --model llama-70b --quant q4_0 --failures net-cafe
    shoal assess --machines 2xrtx-5090 --model llama-70b --quant q4_0 --latency "50 ms"
    """
    known = open_catalogue(catalogue)
    cluster = parse_cluster(check_machines(machines), known)
    if model is None:
        raise ConfigError(
            "No model is named.", next_step="Write --model kimi-k3, or the path of a .gguf file."
        )
    given = make_assumptions(
        known, context=context, prompt=prompt, streams=streams, used=used, usd_per_kwh=usd_per_kwh
    )
    demand = find_model(model, quant, known)
    found = assess(
        cluster,
        demand,
        choose_link(link, cluster, known),
        given,
        Asked(
            token_s=_time(latency, "--latency"),
            losses_per_day=losses_per_day,
            availability=_availability(availability),
        ),
        known.failure(failures),
        reference_server(demand, known.machine(against), known, given),
    )
    if as_json:
        print_json(found)
        return
    screen = console()
    for block in _blocks(found):
        screen.print(block)


def _time(text: str, option: str) -> float:
    seconds = parse(text, Dimension.SECONDS, what=f"value of {option}")
    if seconds == 0:
        raise ConfigError(f"{option} must be more than 0.")
    return seconds


def _availability(text: str) -> float:
    share = share_of(text, "--availability")
    if share == 1:
        raise ConfigError(f"--availability {text} is not below 100 %.", next_step="Nothing is always there.")
    return share


def _blocks(found: Assessment) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{found.model.name}, {found.model.quantisation}", "bold cyan"), f" on {found.cluster}"
    )
    yield Text(
        f"over {found.link}; {found.model.context_tokens:,} tokens of context; machines leave as "
        f"{found.failures}\n",
        style="dim",
    )
    if found.why_not is not None:
        yield Text(f"{found.why_not}\n", style="red")
    yield _panel("Four questions", found.questions)
    yield _panel("Six checks", found.checks)
    yield _splits(found.splits, found.split_kind, found.link)
    yield from remarks_block((), found.unverified)


def _panel(title: str, findings: Sequence[Finding]) -> RenderableType:
    blocks: list[RenderableType] = []
    for number, finding in enumerate(findings, start=1):
        blocks.append(
            Text.assemble(
                (f"{finding.verdict.value.upper():>7}  ", f"bold {STYLES[finding.verdict]}"),
                (f"{number}. {finding.question}  ", "bold"),
                finding.answer,
            )
        )
        lines = [
            ("numbers", "; ".join(figure.text for figure in finding.figures)),
            ("formula", finding.formula),
            ("turns at", finding.turn),
        ]
        for name, line in lines:
            text = Text.assemble((f"{name:>8}  ", "dim"), (line, "" if name == "numbers" else "dim"))
            text.overflow = "fold"
            blocks.append(_indented(text))
    return Panel(Group(*blocks), title=title, title_align="left", box=box.ROUNDED)


def _indented(text: Text) -> RenderableType:

    return Padding(text, (0, 0, 0, 9))


def _splits(splits: Sequence[SplitCost], kind: str, link: str) -> RenderableType:
    table = section(
        f"Ways to split, one token on {kind} over {link}: bounds at full memory bandwidth",
        *("split", "machines", "rounds", "sent a token", "reading", "waiting", "sending", "a token"),
    )
    for split in splits:
        table.add_row(
            split.name,
            f"{split.machines:,}",
            f"{split.rounds:,}",
            traffic_text(split.wire_bytes),
            seconds_text(split.memory_s),
            seconds_text(split.latency_s),
            seconds_text(split.transfer_s),
            Text(seconds_text(split.token_s), style="green" if split.is_possible else "red"),
        )
    notes = [Text(f"{split.name}: {split.formula}", style="dim") for split in splits]
    notes += [Text(f"{split.name}: {split.reason}", style="red") for split in splits if split.reason]
    return Group(table, *notes, Text())
