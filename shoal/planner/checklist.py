"""The six checks: memory, memory bandwidth, links, chain length, recovery, cost."""

from __future__ import annotations

from shoal.core.units import bytes_text, digits_text, rate_text, seconds_text, traffic_text
from shoal.planner import cost_model
from shoal.planner.case import Case
from shoal.planner.finding import Figure, Finding, Verdict, verdict_of
from shoal.planner.upkeep_checks import cost, recovery

HOPS_SHARE = 0.5  # of the asked time: beyond it faster machines help less than shorter chains


def checklist(case: Case) -> tuple[Finding, ...]:
    return (
        _memory(case),
        _memory_bandwidth(case),
        _links(case),
        _chain(case),
        recovery(case),
        cost(case),
    )


def _memory(case: Case) -> Finding:
    margin = (
        case.pipeline.memory_margin
        if case.fits
        else (case.cluster.usable_memory_bytes / (case.pipeline.num_machines * case.kind.usable_memory_bytes))
    )
    slice_bytes = case.pipeline.slice_bytes
    cache = case.model.kv_bytes(case.assumptions.context_tokens)
    more = case.few.max_streams
    return Finding(
        question="Weights and caches in memory",
        verdict=Verdict.NO if not case.fits else verdict_of(max(1.0, margin)),
        margin=margin,
        answer=f"{bytes_text(slice_bytes)} of weights on the fullest machine",
        figures=(
            Figure("slice_bytes", slice_bytes, f"fullest machine holds {bytes_text(slice_bytes)} of weights"),
            Figure("stream_bytes", cache, f"a stream's cache {bytes_text(cache)} over all machines"),
            Figure("max_streams", more, f"room for {more:,} streams"),
        ),
        formula="slice + streams x its cache + work buffers <= usable memory, on every machine",
        turn=f"beyond {more:,} streams of {case.assumptions.context_tokens:,} tokens"
        if case.fits
        else f"{case.pipeline.num_machines:,} machines instead of {case.cluster.num_machines:,}",
    )


def _memory_bandwidth(case: Case) -> Finding:
    streams = case.assumptions.streams
    rate, wanted = case.few.tok_per_s(streams), streams / case.asked.token_s
    margin = rate / wanted
    slowest = max(case.pipeline.decode_stage_s(1))
    return Finding(
        question="Memory bandwidth of each machine",
        verdict=verdict_of(margin),
        margin=margin,
        answer=f"{digits_text(rate)} tok/s for {streams} streams, {digits_text(wanted)} wanted",
        figures=(
            Figure("stage_s", slowest, f"slowest machine {seconds_text(slowest)} a step"),
            Figure(
                "memory_bytes_per_s",
                case.kind.memory_bytes_per_s,
                f"{case.kind.title}: {rate_text(case.kind.memory_bytes_per_s)}",
            ),
            Figure("tok_per_s", rate, f"{digits_text(rate)} tok/s over {streams} streams"),
        ),
        formula="tokens a step x min(steps in flight / round trip, 1 / slowest stage) >= streams / time",
        turn=f"memory {digits_text(1 / margin)} times as fast"
        if margin < 1
        else f"{digits_text(margin)} times the streams, or slower memory by as much",
    )


def _links(case: Case) -> Finding:
    stage_s = max(case.pipeline.chunk_stage_s())
    chunk = case.assumptions.chunk_tokens
    widest = max(case.model.boundary_values or (0,)) * case.assumptions.row_value_bytes * chunk
    if case.pipeline.num_machines == 1:
        widest = 0
    transfer = widest / case.link.bytes_per_s
    margin = stage_s / transfer if transfer else None
    return Finding(
        question="Bandwidth between machines",
        verdict=Verdict.YES if margin is None else verdict_of(margin),
        margin=margin,
        answer="one machine alone needs none"
        if margin is None
        else f"a chunk of {chunk} tokens is {traffic_text(widest)}: {seconds_text(transfer)} on the wire, "
        f"{seconds_text(stage_s)} computed",
        figures=(
            Figure("chunk_bytes", widest, f"{traffic_text(widest)} a chunk at the widest cut"),
            Figure("transfer_s", transfer, f"{seconds_text(transfer)} on {case.link.title}"),
            Figure("stage_s", stage_s, f"{seconds_text(stage_s)} on the slowest stage"),
        ),
        formula="chunk x row bytes / link rate <= time of the slowest stage, or links set the prefill rate",
        turn="-" if margin is None else f"a link of {rate_text(widest / stage_s)}",
    )


def _chain(case: Case) -> Finding:
    hops, allowed = sum(case.pipeline.hops_s(1)), HOPS_SHARE * case.asked.token_s
    margin = allowed / hops if hops else None
    each = cost_model.hop_s(case.link, 0)
    return Finding(
        question="Length of the serial chain",
        verdict=Verdict.YES if margin is None else verdict_of(margin),
        margin=margin,
        answer=f"{case.pipeline.num_machines:,} machines in a row, {seconds_text(hops)} of hops a token",
        figures=(
            Figure("machines", case.pipeline.num_machines, f"{case.pipeline.num_machines:,} machines"),
            Figure("hop_s", each, f"{seconds_text(each)} a hop at least"),
            Figure("hops_s", hops, f"{seconds_text(hops)} of {seconds_text(allowed)} allowed"),
        ),
        formula="hops x (latency + software + row / rate) <= half of the asked time",
        turn=f"a chain of about {max(1, int(allowed / each)):,} machines at this latency",
    )
