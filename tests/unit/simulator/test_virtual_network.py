"""Links in virtual time: messages of one connection follow one another, connections share a link."""

from __future__ import annotations

import random

import pytest
import simpy

from shoal.core.placement import WorkerId
from shoal.engine.interface import Rows
from shoal.simulator.virtual_network import NetworkFaults, Transit, VirtualNetwork
from shoal.wire.messages import Close, Message

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
LATENCY_S = 0.25


class SecondsByNumber:
    """A message occupies its sender's link for as many seconds as its first number says."""

    def transit(self, sender: WorkerId, to: WorkerId, message: Message, rows: Rows | None) -> Transit:
        assert isinstance(message, Close)
        return Transit(float(message.sessions[0]), LATENCY_S)


class Line:
    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.network = VirtualNetwork(self.env, random.Random(1), NetworkFaults(), SecondsByNumber())
        self.came: list[tuple[WorkerId, int, float]] = []
        for name in (A, B, C):
            self.network.attach(name, self._note(name))

    def _note(self, name: WorkerId):  # type: ignore[no-untyped-def]
        def deliver(message: Message, rows: Rows | None) -> None:
            assert isinstance(message, Close)
            self.came.append((name, message.sessions[0], self.env.now))

        return deliver

    def send(self, sender: WorkerId, to: WorkerId, seconds: int) -> None:
        self.network.send(sender, to, Close((seconds,)), None)


def test_messages_of_one_connection_follow_one_another() -> None:
    line = Line()
    line.send(A, B, 4)
    line.send(A, B, 1)
    line.env.run()
    assert line.came == [(B, 4, 4 + LATENCY_S), (B, 1, 5 + LATENCY_S)]


def test_a_short_message_does_not_wait_behind_a_long_one_to_somebody_else() -> None:
    line = Line()
    line.send(A, B, 100)
    line.send(A, C, 1)
    line.env.run(until=50.0)
    assert line.came == [(C, 1, 2 + LATENCY_S)]  # it has half of the link


def test_senders_have_links_of_their_own() -> None:
    line = Line()
    line.send(A, C, 3)
    line.send(B, C, 3)
    line.env.run()
    assert [at_s for _, _, at_s in line.came] == [pytest.approx(3 + LATENCY_S)] * 2
