"""A network in virtual time that loses, delays, doubles and reorders, and whose links can be cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import simpy

from shoal.core.placement import WorkerId
from shoal.engine.interface import Rows
from shoal.wire import messages
from shoal.wire.messages import Message

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How the network misbehaves. delay_s: least one-way delay; jitter_s: mean of the exponential
    part on top, which also reorders. loss, duplication: probability a message."""

    delay_s: float = 0.0005
    jitter_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0


class Transit(NamedTuple):
    """What one message takes: occupied_s of its sender's link if it has that to itself, then latency_s
    until it is there."""

    occupied_s: float
    latency_s: float


class Links(Protocol):
    """How long messages take between these machines."""

    def transit(self, sender: WorkerId, to: WorkerId, message: Message, rows: Rows | None) -> Transit: ...


class VirtualNetwork:
    """Carries messages between named ends, through the real encoding.

    links: real links. A sender has a connection to each receiver, on which messages follow one
    another; busy connections share its link evenly, so that no result waits behind somebody's state.
    Without links every message takes the faults' delay.
    """

    def __init__(
        self,
        env: simpy.Environment,
        rng: random.Random,
        faults: NetworkFaults,
        links: Links | None = None,
    ) -> None:
        self.faults = faults
        self._links = links
        self._free_s: dict[WorkerId, dict[WorkerId, float]] = {}
        self._env = env
        self._rng = rng
        self._ends: dict[WorkerId, Callable[[Message, Rows | None], None]] = {}
        self._cut: set[tuple[WorkerId, WorkerId]] = set()

    def attach(self, name: WorkerId, deliver: Callable[[Message, Rows | None], None]) -> None:
        """Let `name` receive messages through `deliver`."""
        self._ends[name] = deliver

    def cut(self, sender: WorkerId, receiver: WorkerId) -> None:
        """Lose everything from `sender` to `receiver` from now on; the other way stays."""
        self._cut.add((sender, receiver))

    def mend(self, sender: WorkerId, receiver: WorkerId) -> None:
        self._cut.discard((sender, receiver))

    def mend_all(self) -> None:
        self._cut.clear()

    def is_cut(self, one: WorkerId, other: WorkerId) -> bool:
        """Whether anything between the two is lost, either way."""
        return (one, other) in self._cut or (other, one) in self._cut

    def send(self, sender: WorkerId, to: WorkerId, message: Message, rows: Rows | None) -> None:
        """Deliver later: never, once or twice, as the faults have it."""
        if (sender, to) in self._cut:
            return
        frame = messages.encode(message)
        copies = 0 if self._rng.random() < self.faults.loss else 1
        copies += self._rng.random() < self.faults.duplication
        for _ in range(copies):
            delay_s = self._link_s(sender, to, message, rows)
            self._env.process(self._carry(to, frame, rows, delay_s))

    def _link_s(self, sender: WorkerId, to: WorkerId, message: Message, rows: Rows | None) -> float:
        if self._links is None:
            return self.faults.delay_s
        transit = self._links.transit(sender, to, message, rows)
        now_s: float = self._env.now
        connections = self._free_s.setdefault(sender, {})
        # As many as are busy when it starts; that some end or begin meanwhile is left out.
        sharing = 1 + sum(free_s > now_s for other, free_s in connections.items() if other != to)
        free_s = max(now_s, connections.get(to, 0.0)) + transit.occupied_s * sharing
        connections[to] = free_s
        return free_s - now_s + transit.latency_s

    def _carry(self, to: WorkerId, frame: bytes, rows: Rows | None, delay_s: float) -> Process:
        jitter_s = self._rng.expovariate(1 / self.faults.jitter_s) if self.faults.jitter_s else 0.0
        yield self._env.timeout(delay_s + jitter_s)
        self._ends[to](messages.decode(frame), rows)
