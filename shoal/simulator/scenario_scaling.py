"""A scenario with everything faster or slower, or with machines that leave more or less often: how much
a figure depends on what is known only roughly."""

from __future__ import annotations

from dataclasses import replace

from shoal.catalogue.failure import Distribution, Exponential, LemonMixture, Weibull
from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.planner.cluster import Cluster
from shoal.simulator.scenario import Churn, Scenario


def scaled(scenario: Scenario, *, times: float, losses: float) -> Scenario:
    """Every time of machines and links is `times` as long; machines leave `losses` times as often."""
    members = tuple((_slowed(kind, times), count) for kind, count in scenario.cluster.members)
    return replace(
        scenario,
        cluster=Cluster(members),
        link=_slower(scenario.link, times),
        load_bytes_per_s=scenario.load_bytes_per_s / times,
        churn=None if scenario.churn is None else _leaving(scenario.churn, losses),
    )


def _slowed(kind: MachineKind, times: float) -> MachineKind:
    derating = replace(
        kind.derating,
        step_overhead_s=kind.derating.step_overhead_s * times,
        layer_overhead_s=kind.derating.layer_overhead_s * times,
    )
    return replace(
        kind,
        memory_bytes_per_s=kind.memory_bytes_per_s / times,
        usable_ops_per_s=kind.usable_ops_per_s / times,
        derating=derating,
    )


def _slower(link: LinkKind, times: float) -> LinkKind:
    return replace(
        link,
        latency_s=link.latency_s * times,
        software_s=link.software_s * times,
        bytes_per_s=link.bytes_per_s / times,
    )


def _leaving(churn: Churn, losses: float) -> Churn:
    model = churn.model
    rooms = None if model.room_loss is None else Exponential(model.room_loss.mean_s / losses)
    return replace(churn, model=replace(model, uptime=_shorter(model.uptime, losses), room_loss=rooms))


def _shorter(uptime: Distribution, losses: float) -> Distribution:
    match uptime:
        case Exponential(mean_s):
            return Exponential(mean_s / losses)
        case Weibull(shape, scale_s):
            return Weibull(shape, scale_s / losses)
        case LemonMixture(share, sound, lemon):
            return LemonMixture(share, Exponential(sound.mean_s / losses), Exponential(lemon.mean_s / losses))
