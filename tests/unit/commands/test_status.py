"""`shoal status` against Shoal's own gateway."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from shoal.commands.status import status
from tests.unit.commands.canned_server import CannedServer
from tests.unit.gateway.running_gateway import MODEL, RunningGateway


def run(url: str, *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(status)
    return CliRunner().invoke(app, arguments, env={"SHOAL_URL": url, "COLUMNS": "200"})


def test_workers_are_shown_with_pid_slice_and_milliseconds(gateway: RunningGateway) -> None:
    result = run(gateway.url)
    assert result.exit_code == 0
    first = next(line for line in result.stdout.splitlines() if "4711" in line)
    assert first.split() == ["0", "[0,", "8)", "node-1", "stage", "4711", "3.2", "0.5", "9", "live"]
    assert f"{MODEL}: ready, up 1 min 1 s, epoch 3, default mode" in result.stdout
    assert "2 active, 1 waiting" in result.stdout


def test_how_full_journals_are_is_shown_and_what_it_means_when_some_were_cut(gateway: RunningGateway) -> None:
    current = gateway.view.current
    assert "Journals" not in run(gateway.url).stdout  # a head that says nothing of them
    used = replace(current.workers[0], journal_bytes=3 * 2**20)
    gateway.view.current = replace(current, workers=(used, current.workers[1]), journal_limit_bytes=2**26)
    shown = run(gateway.url).stdout
    assert "Journals: 3.0 of 64 MiB used on the fullest worker." in shown
    assert "Cut for want" not in shown
    cut = replace(used, cut_journals=2)
    gateway.view.current = replace(gateway.view.current, workers=(cut, current.workers[1]))
    assert "Cut for want of room: 2 of its sessions" in run(gateway.url).stdout


def test_a_worker_without_steps_has_no_milliseconds(gateway: RunningGateway) -> None:
    last = next(line for line in run(gateway.url).stdout.splitlines() if "4712" in line)
    assert last.split()[6:8] == ["-", "-"]


def test_each_node_is_shown_with_what_its_loss_would_mean(gateway: RunningGateway) -> None:
    shown = run(gateway.url).stdout.splitlines()
    rows = [line.split() for line in shown if "takes over" in line or "requests end" in line]
    assert rows == [
        ["node-1", "hot", "standby", "takes", "over", "0.25", "s"],
        ["node-2", "requests", "end", "with", "an", "error", "-"],
    ]


def test_a_loss_is_shown_with_what_replaced_it_and_how_long_streams_stood_still(
    gateway: RunningGateway,
) -> None:
    (row,) = [line for line in run(gateway.url).stdout.splitlines() if "node-3" in line]
    assert row.split()[:3] == ["node-3", "[8,", "16)"]
    assert row.split()[3:] == ["no", "answer", "to", "pings", "warm", "standby", "1.50", "s", "1.25", "s"]


def test_losses_that_were_not_replaced_say_so_and_none_is_no_table(gateway: RunningGateway) -> None:
    current = gateway.view.current
    open_loss = replace(current.losses[0], rung=None, end="carried no stage", stall_s=None)
    gateway.view.current = replace(current, losses=(open_loss,))
    (row,) = [line for line in run(gateway.url).stdout.splitlines() if "node-3" in line]
    assert "carried no stage" in row
    assert row.split()[-1] == "-"
    gateway.view.current = replace(current, losses=())
    assert "cause" not in run(gateway.url).stdout


def test_missing_layers_and_lost_workers_are_named(gateway: RunningGateway) -> None:
    current = gateway.view.current
    lost = replace(current.workers[1], state="lost")
    gateway.view.current = replace(
        current, ready=False, missing_layers=((8, 16),), workers=(current.workers[0], lost)
    )
    shown = run(gateway.url).stdout
    assert "not ready (layers [8, 16) have no live owner)" in shown
    row = next(line for line in shown.splitlines() if "4712" in line)
    assert row.split()[-1] == "lost"


def test_json_is_the_whole_status(gateway: RunningGateway) -> None:
    found = json.loads(run(gateway.url + "/v1", "--json").stdout)
    assert found["model"] == MODEL
    assert found["workers"][1]["pid"] == 4712


def test_nothing_running_is_exit_one_with_advice(dead_url: str) -> None:
    result = run(dead_url)
    assert result.exit_code == 1
    assert "shoal serve MODEL" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"workers": 5}'])
def test_another_program_on_the_port_is_named(canned: CannedServer, body: bytes) -> None:
    canned.reply("/admin/status", 200, body)
    result = run(canned.url)
    assert result.exit_code == 1
    assert result.stderr.strip()


def test_a_status_of_another_version_points_to_json(canned: CannedServer) -> None:
    canned.reply("/admin/status", 200, b'{"workers": []}')
    assert "--json" in run(canned.url).stderr
    assert run(canned.url, "--json").exit_code == 0


def test_a_refusal_says_where_to_ask(canned: CannedServer) -> None:
    canned.reply("/admin/status", 403, b'{"error": {"message": "Run `shoal status` on the head."}}')
    result = run(canned.url)
    assert result.exit_code == 1
    assert "on the head" in result.stderr
    assert "API_KEY" not in result.stderr


def test_a_bad_url_is_a_usage_error() -> None:
    assert run("nonsense").exit_code == 2
