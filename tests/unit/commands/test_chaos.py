"""What `shoal chaos` refuses, and what its table says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import app
from shoal.commands.chaos import chaos_table, percentile_95
from shoal.core.errors import ConfigError
from shoal.gateway.client import endpoint_at
from shoal.lab.chaos import Round, check_is_here, failed
from shoal.lab.faults import FaultKind
from tests.unit.gateway.running_gateway import FixedView, RunningGateway

STATUS = FixedView().current
KILL = Round(FaultKind.KILL, 1, "warm standby", 0.5, (0.4, 0.8), 0.01, are_right=True, errors=())


def shown(*rounds: Round) -> list[str]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(chaos_table(rounds))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["chaos", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_nothing_is_done_before_somebody_says_yes(gateway: RunningGateway) -> None:
    status, said = run("--base-url", gateway.url)
    assert (status, "Add --yes" in said) == (2, True)


def test_a_worker_elsewhere_is_refused() -> None:
    there = replace(STATUS.workers[1], address="10.0.0.7:5001")
    status = replace(STATUS, workers=(STATUS.workers[0], there))
    with pytest.raises(ConfigError, match=r"10\.0\.0\.7 is not this machine"):
        check_is_here(endpoint_at("http://127.0.0.1:1"), status)


def test_a_head_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shoal\.example is not this machine"):
        check_is_here(endpoint_at("http://shoal.example"), STATUS)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"])
def test_this_machine_by_any_name_is_accepted(url: str) -> None:
    check_is_here(endpoint_at(url), STATUS)


def test_a_pid_that_is_no_workers_is_refused_before_anything_is_killed(gateway: RunningGateway) -> None:
    worker = replace(STATUS.workers[0], role="stage")
    gateway.view.current = replace(STATUS, workers=(worker,))
    status, said = run("--yes", "--base-url", gateway.url)
    assert (status, "no worker of Shoal" in said) == (2, True)


def test_a_row_holds_the_rounds_of_one_fault_and_rung() -> None:
    slower = replace(KILL, stalls_s=(1.2, 1.6), predicted_s=0.7)
    hot = replace(KILL, rung="hot standby", stalls_s=(0.1,), are_right=None)
    assert shown(KILL, hot, slower)[1:] == [
        "kill hot standby 1 0.10 s 0.10 s 0.50 s 10 ms not compared",
        "kill warm standby 2 1.00 s 1.54 s 0.60 s 10 ms right",
    ]


def test_a_wrong_text_and_a_broken_stream_are_said_and_fail_the_run() -> None:
    wrong, broken = replace(KILL, are_right=False), replace(KILL, rung="lost", errors=("It broke off.",))
    assert shown(KILL, wrong)[1].endswith("1 wrong")
    assert shown(broken)[1].endswith("broke off")
    assert failed([KILL]) is None
    assert "1 rounds with a wrong text, 1 streams that broke off. It broke off." in str(
        failed([wrong, broken])
    )


def test_the_95th_percentile_lies_between_the_largest_two_of_few() -> None:
    assert percentile_95([3.0]) == 3.0
    assert percentile_95([0.0, 1.0]) == pytest.approx(0.95)
    assert percentile_95([float(n) for n in range(101)]) == pytest.approx(95)
