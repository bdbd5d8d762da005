"""One server for all tests of a file; each test sets the script that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

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
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=10) as client:
        yield client
