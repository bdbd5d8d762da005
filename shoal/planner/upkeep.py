"""What a deployment draws and costs for a million tokens."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.planner import cost_model
from shoal.planner.assumptions import Assumptions
from shoal.planner.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Of the machines in use, with every step full in the hours with work. usd_*: None where a price
    is not known."""

    power_w: float
    joules_per_token: float
    kwh_per_million: float
    electricity_usd_per_million: float
    hardware_usd_per_million: float | None
    rent_usd_per_million: float | None


def upkeep(deployment: Deployment, assumptions: Assumptions) -> Upkeep:
    """Per million tokens at full load, of the machines that the deployment uses."""
    rate = deployment.tok_per_s(deployment.saturating_streams) * assumptions.used_share
    power_w = deployment.power_w
    machines = [(stage.machine, copies) for pipeline, copies in deployment.parts for stage in pipeline.stages]
    prices = [(kind.price_usd, copies) for kind, copies in machines]
    rents = [(kind.rent_usd_per_hour, copies) for kind, copies in machines]
    price, rent = _sum_known(prices), _sum_known(rents)
    hardware = None
    if price is not None:
        hourly = cost_model.capital_usd_per_hour(price, lifetime_s=assumptions.lifetime_s, used_share=1.0)
        hardware = cost_model.usd_per_million_tokens(hourly, rate)
    electricity = cost_model.electricity_usd_per_hour(power_w, assumptions.usd_per_kwh)
    return Upkeep(
        power_w=power_w,
        joules_per_token=cost_model.joules_per_token(power_w, rate),
        kwh_per_million=cost_model.kwh_per_million_tokens(power_w, rate),
        electricity_usd_per_million=cost_model.usd_per_million_tokens(electricity, rate),
        hardware_usd_per_million=hardware,
        rent_usd_per_million=None if rent is None else cost_model.usd_per_million_tokens(rent, rate),
    )


def _sum_known(figures: list[tuple[float | None, int]]) -> float | None:
    known = [figure * copies for figure, copies in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None
