"""GET /admin/trace."""

from __future__ import annotations

import httpx
import pytest

from tests.unit.gateway.running_gateway import TIMES, RunningGateway


@pytest.mark.parametrize("path", ["", f"/{TIMES.request_id}"])
def test_a_request_that_is_remembered_is_shown(gateway: RunningGateway, path: str) -> None:
    (found,) = httpx.get(f"{gateway.url}/admin/trace{path}").json()["answers"]
    assert found["request_id"] == TIMES.request_id
    assert found["columns"] == list(TIMES.columns)
    assert found["tokens"] == [list(row) for row in TIMES.tokens]


def test_one_that_is_not_is_404_and_named(gateway: RunningGateway) -> None:
    reply = httpx.get(f"{gateway.url}/admin/trace/req-nobody")
    assert reply.status_code == 404
    assert "req-nobody" in reply.json()["error"]["message"]


def test_other_machines_are_refused(gateway: RunningGateway) -> None:
    reply = httpx.get(f"{gateway.url}/admin/trace", headers={"x-forwarded-for": "10.0.0.1"})
    assert reply.status_code == 403
    assert "shoal trace" in reply.json()["error"]["message"]
