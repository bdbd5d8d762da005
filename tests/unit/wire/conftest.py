"""Processes on the wire: real keys, real sockets, all closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shoal.wire.channel import Channel
from shoal.wire.curve import SecureContext


@pytest.fixture
def secure() -> Iterator[Callable[[], SecureContext]]:
    """Makes key pairs with their contexts."""
    made: list[SecureContext] = []

    def make() -> SecureContext:
        made.append(SecureContext())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def channels(secure: Callable[[], SecureContext]) -> Iterator[Callable[[], Channel]]:
    """Makes channels on loopback, each of a process of its own."""
    made: list[Channel] = []

    def make() -> Channel:
        made.append(Channel(secure(), "127.0.0.1"))
        return made[-1]

    yield make
    for each in made:
        each.close()
