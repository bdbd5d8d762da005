"""`shoal estimate`: what machines add up to, and what they can do with a model."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from shoal.commands.foresight import (
    CatalogueOption,
    ContextOption,
    ElectricityOption,
    JsonOption,
    LinkOption,
    MachinesOption,
    ModelOption,
    PromptOption,
    QuantOption,
    StreamsOption,
    UsedOption,
    check_machines,
    choose_link,
    console,
    fact,
    make_assumptions,
    open_catalogue,
    print_json,
    remarks_block,
    section,
)
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
from shoal.planner.classic import NodeCount
from shoal.planner.cluster import parse_cluster
from shoal.planner.estimate import (
    Estimate,
    ModelFacts,
    NodeNeed,
    OneStream,
    Throughput,
    Totals,
    estimate_cluster,
    estimate_model,
)
from shoal.planner.model_source import find_model
from shoal.planner.upkeep import Upkeep


def estimate(
    machines: MachinesOption = [],  # noqa: B006 - typer copies it
    model: ModelOption = None,
    quant: QuantOption = None,
    link: LinkOption = None,
    context: ContextOption = 4096,
    prompt: PromptOption = 1024,
    streams: StreamsOption = 8,
    used: UsedOption = "100 %",
    usd_per_kwh: ElectricityOption = None,
    catalogue: CatalogueOption = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Say what machines can do with a model, before anything is bought or built.

    Without --model it shows the classic pair: a 7B model at 16 bits and a 70B one at 4.

    \b
    shoal estimate --machines 100000xPS3
    shoal estimate --machines 100000xPS3 --model kimi-k3
    shoal estimate --machines 2xRTX-5090 --model llama-70b --quant q4_0
    shoal estimate --machines 8xN100,1xRTX-3060 --model my-model.gguf
    """
    known = open_catalogue(catalogue)
    cluster = parse_cluster(check_machines(machines), known)
    chosen = choose_link(link, cluster, known)
    if model is None:
        found = estimate_cluster(cluster, chosen, known)
    else:
        given = make_assumptions(
            known, context=context, prompt=prompt, streams=streams, used=used, usd_per_kwh=usd_per_kwh
        )
        found = estimate_model(cluster, find_model(model, quant, known), chosen, given)
    if as_json:
        print_json(found)
        return
    screen = console()
    for block in _blocks(found):
        screen.print(block)
        screen.print()


def _blocks(found: Estimate) -> Iterator[RenderableType]:
    yield _totals(found.cluster, found.totals)
    if found.classic:
        yield _classic(found.classic)
        yield _slips(found.classic)
    if found.model is not None:
        yield _model(found.model)
        yield _needs(found.needs)
    if found.one_stream is not None:
        yield _one_stream(found.one_stream, found.link)
    if found.throughput is not None:
        yield _throughput(found.throughput)
    if found.upkeep is not None:
        yield _upkeep(found.upkeep)
    yield from remarks_block(found.remarks, found.unverified)


def _totals(cluster: str, totals: Totals) -> RenderableType:
    table = section(cluster)
    fact(table, "Compute, as marketed", ops_text(totals.marketed_ops_per_s))
    fact(table, "Compute, usable", ops_text(totals.usable_ops_per_s), "what a program can reach at most")
    fact(table, "Memory", bytes_text(totals.memory_bytes), f"{bytes_text(totals.usable_memory_bytes)} usable")
    fact(table, "Memory bandwidth", rate_text(totals.memory_bytes_per_s), "the sum; one stream never sees it")
    fact(table, "Power", power_text(totals.power_w), "at the wall, loaded")
    if totals.price_usd is not None:
        fact(table, "To buy", usd_text(totals.price_usd))
    if totals.rent_usd_per_hour is not None:
        fact(table, "To rent", f"{usd_text(totals.rent_usd_per_hour)} an hour")
    return table


def _classic(counts: tuple[NodeCount, ...]) -> RenderableType:
    table = section(
        "The classic pair: weights alone",
        *("model", "parameters", "format", "bytes", "machines", "if usable", "real model", "one token"),
    )
    for count in counts:
        table.add_row(
            count.model,
            count_text(count.parameters),
            count.quantisation,
            bytes_text(count.weight_bytes),
            f"{count.nodes:,}",
            f"{count.usable_nodes:,}",
            f"{count.real_nodes:,}",
            seconds_text(count.chain_s),
        )
    return table


def _slips(counts: tuple[NodeCount, ...]) -> RenderableType:
    lines = []
    for count in counts:
        lines.append(f"{count.model}: ceil({count.exact_nodes:.3f}) = {count.nodes:,} machines.")
        if count.slips:
            slips = ", ".join(f"{nodes:,} is {reason}" for nodes, reason in count.slips)
            lines[-1] += f" Other counts in print are rounding errors: {slips}."
        lines[-1] += (
            f" The real model has {count_text(count.real_parameters)} parameters, here at "
            f"{count.real_quantisation}."
        )
    lines.append(
        "if usable: in the memory that is free. one token: machines read one after the other, no hops."
    )
    return Text("\n".join(lines), style="dim")


def _model(model: ModelFacts) -> RenderableType:
    table = section(f"{model.name}, {model.quantisation}")
    fact(
        table,
        "Parameters",
        count_text(model.parameters),
        f"{count_text(model.active_parameters)} used by a token",
    )
    fact(
        table,
        "Weights",
        bytes_text(model.weight_bytes),
        f"largest layer {bytes_text(model.largest_layer_bytes)}",
    )
    fact(table, "Read for a token", traffic_text(model.active_bytes), "weights, one stream alone")
    state = (
        f", and {traffic_text(model.state_bytes)} of state that every token rewrites"
        if model.state_bytes
        else ""
    )
    fact(table, "Cache", f"{traffic_text(model.kv_bytes_per_token)} a token", f"16 bits{state}")
    fact(
        table,
        "Cache of a stream",
        bytes_text(model.kv_bytes_per_stream),
        f"at {model.context_tokens:,} tokens, windows and state included",
    )
    fact(
        table,
        "Row across a cut",
        _payload_text(model),
        f"{model.row_value_bytes * 8} bits a value, as Shoal sends it",
    )
    for note in model.notes:
        fact(table, "", "", note)
    return table


def _payload_text(model: ModelFacts) -> str:
    if model.min_payload_bytes == model.max_payload_bytes:
        return f"{model.max_payload_bytes:,} B a token"
    return f"{model.min_payload_bytes:,} to {model.max_payload_bytes:,} B a token"


def _needs(needs: tuple[NodeNeed, ...]) -> RenderableType:
    table = section(
        "Machines that it needs",
        *("kind", "memory", "usable", "weights alone", "in usable memory", "with caches", "a layer fits"),
    )
    for need in needs:
        table.add_row(
            need.kind,
            bytes_text(need.memory_bytes),
            bytes_text(need.usable_memory_bytes),
            f"{need.weights_nodes:,}",
            f"{need.usable_nodes:,}",
            "-" if need.full_nodes is None else f"{need.full_nodes:,}",
            "yes" if need.holds_a_layer else "[red]no[/red]",
        )
    return table


def _one_stream(one: OneStream, link: str) -> RenderableType:
    table = section(f"One stream over {link}")
    layout = "whole layers" if one.is_whole_layers else "even pieces, cut anywhere"
    fact(table, "Machines", f"{one.machines:,}", layout)
    fact(
        table,
        "Serial floor",
        f"{seconds_text(one.floor_s)} a token",
        f"{seconds_text(one.floor_memory_s)} reading at full bandwidth + {seconds_text(one.hops_s)} hops",
    )
    fact(
        table,
        "Expected",
        f"{seconds_text(one.expected_s)} a token",
        f"{digits_text(1 / one.expected_s)} tok/s; {one.bound}-bound",
    )
    fact(table, "First token", seconds_text(one.prefill_s), f"prompt of {one.prompt_tokens:,} tokens")
    fact(table, "Read a token", traffic_text(one.read_bytes_per_token), "weights, cache and state")
    fact(table, "Sent a token", traffic_text(one.wire_bytes_per_token), "over all cuts")
    return table


def _throughput(many: Throughput) -> RenderableType:
    table = section("All streams together")
    at_once = (
        "" if many.streams_at_once == many.streams else f"; {many.streams_at_once:,} at a time is faster"
    )
    fact(
        table,
        f"{many.streams:,} streams",
        f"{digits_text(many.streams_tok_per_s)} tok/s",
        f"{many.streams_machines:,} machines{at_once}",
    )
    fact(
        table,
        f"{many.full_streams:,} streams",
        f"{digits_text(many.full_tok_per_s)} tok/s",
        f"{many.full_machines:,} machines, {_pipelines_text(many.full_pipelines)}; "
        "as many as memory and steps take",
    )
    return table


def _pipelines_text(count: int) -> str:
    return "one pipeline" if count == 1 else f"{count:,} pipelines"


def _upkeep(upkeep: Upkeep) -> RenderableType:
    table = section("Upkeep, a million tokens with every step full")
    fact(
        table,
        "Energy",
        f"{digits_text(upkeep.kwh_per_million)} kWh",
        f"{digits_text(upkeep.joules_per_token)} J a token at {power_text(upkeep.power_w)}",
    )
    fact(table, "Electricity", usd_text(upkeep.electricity_usd_per_million))
    if upkeep.hardware_usd_per_million is not None:
        fact(table, "Hardware", usd_text(upkeep.hardware_usd_per_million), "price over its lifetime")
    if upkeep.rent_usd_per_million is not None:
        fact(table, "Or rented", usd_text(upkeep.rent_usd_per_million), "electricity included")
    return table
