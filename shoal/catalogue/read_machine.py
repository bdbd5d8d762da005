"""Tables of machines, classes, links, prices and failures in a catalogue file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.failure import Distribution, Exponential, FailureModel, LemonMixture, Weibull
from shoal.catalogue.machine import Derating, LinkKind, MachineKind
from shoal.catalogue.toml_table import TomlTable
from shoal.core.names import nearest_text
from shoal.core.units import Dimension

HOURS_A_DAY: Final = 24
DAYS_A_WEEK: Final = 7


@dataclass(frozen=True, slots=True)
class MachineClass:
    """What machines of one class have in common. reserved_bytes: kept by system and runtime. host_*: of
    the computer around a card, where the entries describe cards; 0 otherwise."""

    derating: Derating
    reserved_bytes: float
    host_power_w: float
    host_price_usd: float


def read_class(table: TomlTable) -> MachineClass:
    """Raises ConfigError naming file, line and field; so do all functions here."""
    found = MachineClass(
        derating=Derating(
            memory=_share(table, "memory"),
            compute=_share(table, "compute"),
            few_rows=_share(table, "few_rows"),
            matrix_min_rows=table.integer("matrix_min_rows", least=1),
            step_overhead_s=table.quantity("step_overhead", Dimension.SECONDS),
            layer_overhead_s=table.quantity("layer_overhead", Dimension.SECONDS),
        ),
        reserved_bytes=table.quantity("reserved_memory", Dimension.BYTES),
        host_power_w=table.optional_quantity("host_power", Dimension.WATTS) or 0.0,
        host_price_usd=table.optional_quantity("host_price", Dimension.USD) or 0.0,
    )
    table.end()
    return found


def read_machine(
    name: str, table: TomlTable, classes: Mapping[str, MachineClass], links: Mapping[str, LinkKind]
) -> MachineKind:
    title, aliases = table.label("title"), table.texts("aliases")
    group, link = table.label("class"), table.label("link")
    if group not in classes:
        raise table.error("class", f"is {group!r}, which is not described{nearest_text(group, classes)}")
    if link not in links:
        raise table.error("link", f"is {link!r}, which is not described{nearest_text(link, links)}")
    memory = _positive(table, "memory", Dimension.BYTES)
    usable = table.optional_quantity("usable_memory", Dimension.BYTES)
    if usable is None:
        usable = memory - classes[group].reserved_bytes
    if not 0 < usable <= memory:
        raise table.error("usable_memory", f"comes to {usable:.0f} bytes of {memory:.0f}; give one between")
    own_class, price = classes[group], table.optional_quantity("price", Dimension.USD)
    kind = MachineKind(
        name=name,
        title=title,
        group=group,
        memory_bytes=round(memory),
        usable_memory_bytes=round(usable),
        memory_bytes_per_s=_positive(table, "memory_bandwidth", Dimension.BYTES_PER_S),
        marketed_ops_per_s=_positive(table, "marketed_compute", Dimension.OPS_PER_S),
        usable_ops_per_s=_positive(table, "usable_compute", Dimension.OPS_PER_S),
        derating=own_class.derating,
        link=link,
        power_w=_positive(table, "power", Dimension.WATTS) + own_class.host_power_w,
        idle_power_w=table.optional_quantity("idle_power", Dimension.WATTS),
        price_usd=None if price is None else price + own_class.host_price_usd,
        rent_usd_per_hour=table.optional_quantity("rent", Dimension.USD_PER_HOUR),
        aliases=aliases,
        provenance=table.provenance,
    )
    table.end()
    return kind


def read_link(name: str, table: TomlTable) -> LinkKind:
    title = table.label("title")
    link = LinkKind(
        name=name,
        title=title,
        latency_s=table.quantity("latency", Dimension.SECONDS),
        software_s=table.quantity("software", Dimension.SECONDS),
        bytes_per_s=_positive(table, "rate", Dimension.BYTES_PER_S),
        provenance=table.provenance,
    )
    table.end()
    return link


def read_failure(name: str, table: TomlTable) -> FailureModel:
    title = table.label("title")
    on_share = table.optional_quantity("on_share", Dimension.SHARE)
    if on_share is not None and not 0 < on_share <= 1:
        raise table.error("on_share", "must lie above 0 % and up to 100 %")
    provenance = table.provenance
    distributions: dict[str, Distribution] = {}
    for part in ("uptime", "repair", "room_loss"):
        if part != "room_loss" or table.has(part):
            inner = table.table(part)
            distributions[part] = _distribution(inner)
            provenance.update({f"{part}.{key}": origin for key, origin in inner.provenance.items()})
    room_loss = distributions.get("room_loss")
    if room_loss is not None and not isinstance(room_loss, Exponential):
        raise table.error("room_loss", "must be exponential")
    model = FailureModel(
        name=name,
        title=title,
        uptime=distributions["uptime"],
        repair=distributions["repair"],
        on_share=on_share,
        day_profile=table.numbers("day_profile", HOURS_A_DAY),
        week_profile=table.numbers("week_profile", DAYS_A_WEEK),
        room_size=table.optional_integer("room_size"),
        room_loss=room_loss,
        provenance=provenance,
    )
    table.end()
    return model


def _distribution(table: TomlTable) -> Distribution:
    kind = table.label("kind")
    if kind not in _DISTRIBUTIONS:
        raise table.error(
            "kind", f"is {kind!r}, which is no distribution{nearest_text(kind, _DISTRIBUTIONS)}"
        )
    found = _DISTRIBUTIONS[kind](table)
    table.end()
    return found


def _exponential(table: TomlTable) -> Distribution:
    return Exponential(mean_s=_positive(table, "mean", Dimension.SECONDS))


def _weibull(table: TomlTable) -> Distribution:
    return Weibull(shape=table.number("shape"), scale_s=_positive(table, "scale", Dimension.SECONDS))


def _lemons(table: TomlTable) -> Distribution:
    return LemonMixture(
        lemon_share=_share(table, "lemon_share"),
        sound=Exponential(_positive(table, "sound_mean", Dimension.SECONDS)),
        lemon=Exponential(_positive(table, "lemon_mean", Dimension.SECONDS)),
    )


_DISTRIBUTIONS: Final[Mapping[str, Callable[[TomlTable], Distribution]]] = {
    "exponential": _exponential,
    "weibull": _weibull,
    "lemons": _lemons,
}


def _share(table: TomlTable, key: str) -> float:
    share = table.quantity(key, Dimension.SHARE)
    if not 0 < share <= 1:
        raise table.error(key, "must lie above 0 % and up to 100 %")
    return share


def _positive(table: TomlTable, key: str, dimension: Dimension) -> float:
    value = table.quantity(key, dimension)
    if value == 0:
        raise table.error(key, "must be more than 0")
    return value
