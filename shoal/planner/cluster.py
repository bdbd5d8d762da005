"""Which machines there are: kinds and counts, and what they add up to.

Totals are what people multiply out first. They are right as sums and say little: one stream never uses
the sum of bandwidths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.catalogue.loader import Catalogue
from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.core.errors import ConfigError

MAX_MACHINES: Final = 100_000_000

_ITEM: Final = re.compile(r"(?:(-?[0-9][0-9_.]*)\s*[xX*]\s*)?(\S.*)")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines by kind. members: (kind, count), each kind once, in the order given."""

    members: tuple[tuple[MachineKind, int], ...]

    @property
    def num_machines(self) -> int:
        return sum(count for _, count in self.members)

    @property
    def memory_bytes(self) -> int:
        return sum(count * kind.memory_bytes for kind, count in self.members)

    @property
    def usable_memory_bytes(self) -> int:
        return sum(count * kind.usable_memory_bytes for kind, count in self.members)

    @property
    def memory_bytes_per_s(self) -> float:
        return sum(count * kind.memory_bytes_per_s for kind, count in self.members)

    @property
    def marketed_ops_per_s(self) -> float:
        return sum(count * kind.marketed_ops_per_s for kind, count in self.members)

    @property
    def usable_ops_per_s(self) -> float:
        return sum(count * kind.usable_ops_per_s for kind, count in self.members)

    @property
    def power_w(self) -> float:
        return sum(count * kind.power_w for kind, count in self.members)

    @property
    def price_usd(self) -> float | None:
        """To buy all; None where a kind has no known price."""
        prices = [(kind.price_usd, count) for kind, count in self.members]
        known = [price * count for price, count in prices if price is not None]
        return sum(known) if len(known) == len(prices) else None

    @property
    def rent_usd_per_hour(self) -> float | None:
        """To rent all; None where a kind has no known rent."""
        rents = [(kind.rent_usd_per_hour, count) for kind, count in self.members]
        known = [rent * count for rent, count in rents if rent is not None]
        return sum(known) if len(known) == len(rents) else None

    @property
    def links(self) -> tuple[str, ...]:
        """Names of the networks that the machines come with."""
        return tuple(dict.fromkeys(kind.link for kind, _ in self.members))

    def __str__(self) -> str:
        return ", ".join(f"{count:,} x {kind.title}" for kind, count in self.members)


def parse_cluster(texts: Sequence[str], catalogue: Catalogue) -> Cluster:
    """`["100000xPS3", "2xRTX-5090, N100"]` as machines; a kind without a count is one.

    Raises ConfigError for an unknown kind (with the nearest name), a count that is no whole number
    above 0, or nothing at all.
    """
    counts: dict[str, int] = {}
    kinds: dict[str, MachineKind] = {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        if not item:
            continue
        count, kind = _read_item(item, catalogue)
        kinds[kind.name] = kind
        counts[kind.name] = counts.get(kind.name, 0) + count
    if not kinds:
        raise ConfigError("--machines names no machine.", next_step="Write it like 8xN100,2xRTX-5090.")
    return Cluster(tuple((kinds[name], count) for name, count in counts.items()))


def slowest_link(cluster: Cluster, catalogue: Catalogue) -> LinkKind:
    """The slowest network that the machines come with: what all of them can use."""
    return min((catalogue.link(name) for name in cluster.links), key=lambda link: link.bytes_per_s)


def _read_item(item: str, catalogue: Catalogue) -> tuple[int, MachineKind]:
    match = _ITEM.fullmatch(item)
    assert match is not None, "an item is not empty"
    digits, name = match.groups()
    count_text = "1" if digits is None else digits.replace("_", "")
    if not count_text.isdigit() or not 1 <= int(count_text) <= MAX_MACHINES:
        raise ConfigError(
            f"--machines {item} has the count {digits}, which is not a whole number from 1 to "
            f"{MAX_MACHINES:,}.",
            next_step="Write it like 8xN100.",
        )
    return int(count_text), catalogue.machine(name)
