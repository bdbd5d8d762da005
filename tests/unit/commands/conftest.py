"""Servers to talk to, and a command line around one command."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.unit.commands.canned_server import CannedServer, canned_server
from tests.unit.gateway.running_gateway import FixedView, RunningGateway, running_gateway


@pytest.fixture(scope="module")
def module_gateway() -> Iterator[RunningGateway]:
    with running_gateway() as gateway:
        yield gateway


@pytest.fixture
def gateway(module_gateway: RunningGateway) -> RunningGateway:
    module_gateway.follow("Hello", " world")
    module_gateway.view.current = FixedView().current
    return module_gateway


@pytest.fixture
def canned() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A port that is bound, so that nobody else takes it, but not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
