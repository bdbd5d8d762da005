"""Losing machines, in closed form: how often, how long, and how many copies help against it.

Renewal arithmetic for places that are filled again when their machine leaves. Correlated losses and
recurring lemons are left to simulation; they make real figures worse.
"""

from __future__ import annotations

import math

from shoal.catalogue.failure import Exponential, FailureModel, LemonMixture, Weibull


def losses_per_s(model: FailureModel, num_machines: int) -> float:
    """Losses a second among places that are refilled at once: machines / mean uptime, in the long run."""
    uptime = model.uptime
    match uptime:
        case LemonMixture():
            return num_machines * uptime.failures_per_s
        case Exponential() | Weibull():
            return num_machines / uptime.mean_s


def chain_availability(share_on: float, num_machines: int, copies: int = 1) -> float:
    """That of all places at least one of `copies` independent machines is there: (1-(1-a)^r)^n."""
    return math.pow(1 - math.pow(1 - share_on, copies), num_machines)


def copies_needed(share_on: float, num_machines: int, wanted: float) -> int | None:
    """Fewest copies of each place for an availability of `wanted`, without ever moving one; None
    beyond a hundred."""
    for copies in range(1, 101):
        if chain_availability(share_on, num_machines, copies) >= wanted:
            return copies
    return None


def refill_s(slice_bytes: float, link_bytes_per_s: float) -> float:
    """Fetching a lost machine's weights from one peer: bytes / rate."""
    return slice_bytes / link_bytes_per_s


def down_share(losses: float, outage_s: float) -> float:
    """Share of time without a complete chain, outages one at a time: r*t / (1 + r*t)."""
    return losses * outage_s / (1 + losses * outage_s)
