"""`shoal trace` against Shoal's own gateway."""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.testing import CliRunner

from shoal.commands.trace import trace
from tests.unit.commands.canned_server import CannedServer
from tests.unit.gateway.running_gateway import TIMES, RunningGateway


def run(url: str, *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(trace)
    return CliRunner().invoke(app, arguments, env={"SHOAL_URL": url, "COLUMNS": "100"})


def cells(shown: str, part: str) -> list[str]:
    line = next(line for line in shown.splitlines() if line.startswith(part))
    return line.removeprefix(part).split()


def test_each_part_has_its_milliseconds_and_share(gateway: RunningGateway) -> None:
    shown = run(gateway.url, TIMES.request_id).stdout
    assert "7 prompt tokens, 3 generated, stop, 1.00 s, 100% of it below" in shown
    assert cells(shown, "stage 1 compute")[:5] == ["400.00", "66.7%", "100.00", "150.00", "50.0%"]
    assert cells(shown, "wire")[:5] == ["200.00", "33.3%", "100.00", "100.00", "50.0%"]
    assert cells(shown, "all") == ["600.00", "200.00", "250.00"]


def test_without_an_id_the_newest_is_shown(gateway: RunningGateway) -> None:
    assert TIMES.request_id in run(gateway.url).stdout


def test_json_has_a_row_for_each_token(gateway: RunningGateway) -> None:
    (found,) = json.loads(run(gateway.url, "--json").stdout)["answers"]
    assert len(found["tokens"]) == 2


def test_a_request_that_is_not_remembered_is_exit_one(gateway: RunningGateway) -> None:
    result = run(gateway.url, "req-nobody")
    assert result.exit_code == 1
    assert "req-nobody" in result.stderr


def test_a_trace_of_another_version_points_to_json(canned: CannedServer) -> None:
    canned.reply("/admin/trace", 200, b'{"answers": [{"request_id": 5}]}')
    result = run(canned.url)
    assert result.exit_code == 1
    assert "--json" in result.stderr
