"""The two checks about keeping it up: losing machines, and what a token costs."""

from __future__ import annotations

from shoal.core.units import DAY_S, digits_text, seconds_text, usd_text
from shoal.planner import recovery_arithmetic
from shoal.planner.case import Case
from shoal.planner.finding import Figure, Finding, verdict_of
from shoal.planner.upkeep import Upkeep, upkeep

NINES = 0.999


def recovery(case: Case) -> Finding:
    """How often the chain breaks, how long that lasts, and what standbys and copies would do."""
    machines = case.pipeline.num_machines
    losses = recovery_arithmetic.losses_per_s(case.failures, machines)
    refill = recovery_arithmetic.refill_s(case.pipeline.slice_bytes, case.link.bytes_per_s)
    replay = case.pipeline.prefill_s(case.assumptions.context_tokens)
    outage = case.assumptions.notice_s + refill + replay
    down = recovery_arithmetic.down_share(losses, outage)
    allowed = 1 - case.asked.availability
    return Finding(
        question="Checkpoint, retry and recovery",
        verdict=verdict_of(allowed / down),
        margin=allowed / down,
        answer=f"a loss every {seconds_text(1 / losses)}, each {seconds_text(outage)} long",
        figures=(
            Figure(
                "losses_per_day", losses * DAY_S, f"{digits_text(losses * DAY_S)} losses a day in the chain"
            ),
            Figure(
                "notice_s",
                case.assumptions.notice_s,
                f"noticed after {seconds_text(case.assumptions.notice_s)}",
            ),
            Figure("refill_s", refill, f"weights fetched again in {seconds_text(refill)}"),
            Figure("replay_s", replay, f"a stream computed again in {seconds_text(replay)}"),
            *_shares(case, losses, outage, refill),
        ),
        formula="losses x (notice + weights / link rate + context computed again) <= allowed down time",
        turn=f"a loss every {seconds_text(outage / allowed)}, or outages of {seconds_text(allowed / losses)}",
    )


def _shares(case: Case, losses: float, outage: float, refill: float) -> tuple[Figure, ...]:
    down = recovery_arithmetic.down_share(losses, outage)
    warm = recovery_arithmetic.down_share(losses, outage - refill)
    share_on, machines = case.failures.availability, case.pipeline.num_machines
    alone = recovery_arithmetic.chain_availability(share_on, machines)
    copies = recovery_arithmetic.copies_needed(share_on, machines, NINES)
    return (
        Figure("up_share", 1 - down, f"up {_percent(1 - down)} of the time"),
        Figure("warm_up_share", 1 - warm, f"with standbys that hold the weights {_percent(1 - warm)}"),
        Figure("static_up_share", alone, f"replacing nothing {alone:.2g} of 1"),
        Figure(
            "copies",
            copies,
            f"{copies or 'over 100'} copies of each part for {_percent(NINES)} without replacing",
        ),
    )


def cost(case: Case) -> Finding:
    """Own machines at full load against the rented server."""
    own = upkeep(case.deployment, case.assumptions)
    cheapest = _cheapest(own)
    reference = case.reference
    margin, server, turn = None, "no server to compare with", "prices that are not known"
    if reference is not None:
        server = f"{reference.gpus} x {reference.title} rented: {usd_text(reference.usd_per_million)}"
        if cheapest is not None:
            margin = reference.usd_per_million / cheapest
            turn = (
                f"the server at {usd_text(reference.usd_per_hour / margin)} an hour instead of "
                f"{usd_text(reference.usd_per_hour)}"
            )
    mine = "unknown" if cheapest is None else usd_text(cheapest)
    return Finding(
        question="Cost of a million tokens",
        verdict=verdict_of(margin),
        margin=margin,
        answer=f"{mine} at full load; {server}",
        figures=_cost_figures(case, own),
        formula="(power x price of a kWh + price / lifetime, or rent) / tokens an hour <= the server's",
        turn=turn,
    )


def _cheapest(own: Upkeep) -> float | None:
    ways = []
    if own.hardware_usd_per_million is not None:
        ways.append(own.hardware_usd_per_million + own.electricity_usd_per_million)
    if own.rent_usd_per_million is not None:
        ways.append(own.rent_usd_per_million)
    return min(ways, default=None)


def _cost_figures(case: Case, own: Upkeep) -> tuple[Figure, ...]:
    named = [
        ("electricity", own.electricity_usd_per_million),
        ("hardware", own.hardware_usd_per_million),
        ("rent", own.rent_usd_per_million),
        ("server", case.reference.usd_per_million if case.reference else None),
    ]
    prices = [Figure(f"{name}_usd", usd, f"{name} {usd_text(usd)}") for name, usd in named if usd is not None]
    return (Figure("kwh", own.kwh_per_million, f"{digits_text(own.kwh_per_million)} kWh"), *prices)


def _percent(share: float) -> str:
    """Enough digits to tell 99.98 % from all of it."""
    return f"{100 * share:.6g} %"
