"""The four questions: does it fit, what does a token need, what latency is asked, what upkeep is accepted."""

from __future__ import annotations

from shoal.core.units import (
    DAY_S,
    bytes_text,
    digits_text,
    power_text,
    rate_text,
    seconds_text,
    traffic_text,
)
from shoal.planner.case import Case
from shoal.planner.cost_model import StepShape, stage_work
from shoal.planner.deployment import full_need_bytes, nodes_in_full
from shoal.planner.finding import Figure, Finding, Verdict, verdict_of
from shoal.planner.recovery_arithmetic import losses_per_s


def four_questions(case: Case) -> tuple[Finding, ...]:
    return (_fits(case), _token_needs(case), _latency(case), _upkeep(case))


def _fits(case: Case) -> Finding:
    need, usable = full_need_bytes(case.model, case.assumptions), case.cluster.usable_memory_bytes
    margin = usable / need
    in_layers = case.fits and case.pipeline.is_whole_layers
    largest = max(layer.weight_bytes for layer in case.model.layers)
    verdict = Verdict.NO if not case.fits else verdict_of(max(1.0, margin))
    answer = "by whole layers"
    turn = f"it stops fitting above {digits_text(need * margin / 2**30)} GiB of weights and caches"
    if case.fits and not in_layers:
        verdict, answer = Verdict.CLOSE, "only in pieces smaller than a layer, which no engine here cuts"
        turn = f"machines with {bytes_text(largest)} of usable memory would hold whole layers"
    elif not case.fits:
        answer = f"needs {bytes_text(need)}, has {bytes_text(usable)} usable"
        nodes = nodes_in_full(case.model, case.kind, case.assumptions)
        many = "more" if nodes is None else f"about {nodes:,}"
        share = digits_text(100 * min(margin, 1.0))
        turn = f"{many} x {case.kind.title}, or weights and caches at {share} % of their size"
        if margin >= 1:
            turn = f"{many} x {case.kind.title}: whole layers of {bytes_text(largest)} leave gaps"
    return Finding(
        question="Does it fit?",
        verdict=verdict,
        margin=margin,
        answer=answer,
        figures=(
            Figure("need_bytes", need, f"needs {bytes_text(need)}"),
            Figure("usable_bytes", usable, f"has {bytes_text(usable)} usable"),
            Figure("largest_layer_bytes", largest, f"largest layer {bytes_text(largest)}"),
            Figure(
                "machine_usable_bytes",
                case.kind.usable_memory_bytes,
                f"one {case.kind.title} has {bytes_text(case.kind.usable_memory_bytes)}",
            ),
        ),
        formula="weights + streams x cache <= usable memory, and a layer <= one machine's",
        turn=turn,
    )


def _token_needs(case: Case) -> Finding:
    asked_s = case.asked.token_s
    work = stage_work(case.model.whole, StepShape.decode(1, case.assumptions.context_tokens))
    read = work.weight_bytes + work.cache_bytes
    floor = case.pipeline.token_s(is_printed=True) - sum(case.pipeline.hops_s(1))
    margin = asked_s / floor
    return Finding(
        question="What does a token need?",
        verdict=verdict_of(margin),
        margin=margin,
        answer=f"{traffic_text(read)} read one after the other: {seconds_text(floor)} at full bandwidth",
        figures=(
            Figure("read_bytes", read, f"reads {traffic_text(read)}"),
            Figure("ops", work.ops, f"{digits_text(work.ops / 1e9)} billion operations"),
            Figure(
                "wire_bytes",
                case.pipeline.wire_bytes_per_token,
                f"sends {traffic_text(case.pipeline.wire_bytes_per_token)}",
            ),
            Figure("floor_s", floor, f"{seconds_text(floor)} for {seconds_text(asked_s)} asked"),
        ),
        formula="sum over stages of (active weights + cache) / one machine's memory bandwidth <= asked time",
        turn=f"in a row: machines of {rate_text(read / asked_s)} each, or "
        f"{traffic_text(read * margin)} a token; in parallel: a tensor or expert split (below)",
    )


def _latency(case: Case) -> Finding:
    asked_s, expected = case.asked.token_s, case.pipeline.token_s()
    hops = sum(case.pipeline.hops_s(1))
    margin = asked_s / expected
    best = case.best_split
    figures = [
        Figure("expected_s", expected, f"expected {seconds_text(expected)} a token"),
        Figure("hops_s", hops, f"{seconds_text(hops)} of it hops"),
        Figure(
            "prefill_s",
            case.pipeline.prefill_s(case.assumptions.prompt_tokens),
            f"first token of {case.assumptions.prompt_tokens:,} after "
            f"{seconds_text(case.pipeline.prefill_s(case.assumptions.prompt_tokens))}",
        ),
    ]
    turn = "no way of splitting that fits these machines was found"
    if best is not None:
        figures.append(
            Figure(
                "best_split_s", best.token_s, f"bound of the {best.name} split {seconds_text(best.token_s)}"
            )
        )
        reaches = "could reach it" if best.token_s <= asked_s else "does not reach it either"
        turn = f"the {best.name} split {reaches} ({seconds_text(best.token_s)} at best)"
    if verdict_of(margin) is Verdict.YES:
        room = seconds_text(asked_s - expected)
        turn = f"asked below {seconds_text(expected)}, or hops slower by {room} in all"
    return Finding(
        question="What latency is asked?",
        verdict=verdict_of(margin),
        margin=margin,
        answer=f"{seconds_text(asked_s)} asked, {seconds_text(expected)} expected",
        figures=tuple(figures),
        formula="sum of stages (derated roofline) + hops x (latency + software + bytes / rate) <= asked time",
        turn=turn,
    )


def _upkeep(case: Case) -> Finding:
    machines = case.few.num_machines
    losses = losses_per_s(case.failures, machines) * DAY_S
    margin = case.asked.losses_per_day / losses
    mean_d = machines / case.asked.losses_per_day
    return Finding(
        question="What upkeep is accepted?",
        verdict=verdict_of(margin),
        margin=margin,
        answer=f"{digits_text(losses)} losses a day among {machines:,} machines, "
        f"{digits_text(case.asked.losses_per_day)} accepted",
        figures=(
            Figure("losses_per_day", losses, f"{digits_text(losses)} losses a day"),
            Figure("machines", machines, f"{machines:,} machines ({case.failures.title})"),
            Figure("power_w", case.few.power_w, f"{power_text(case.few.power_w)} of power"),
        ),
        formula="machines / mean time to leaving <= accepted losses",
        turn=f"machines that stay {seconds_text(mean_d * DAY_S)} on average, or "
        f"{max(1, int(machines * margin)):,} of them",
    )
