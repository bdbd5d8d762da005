"""`shoal estimate` and `shoal assess`, as a person or a script uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from shoal.commands.assess import assess_command
from shoal.commands.catalogue import catalogue_command
from shoal.commands.estimate import estimate
from shoal.core.errors import ConfigError
from shoal.planner.deployment import DoesNotFit

SMALL = ("--machines", "2xrtx-5090", "--model", "llama-70b", "--quant", "q4_0")


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command("estimate")(estimate)
    app.command("assess")(assess_command)
    app.command("catalogue")(catalogue_command)
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_thought_experiment_is_one_command() -> None:
    text = run("estimate", "--machines", "100000xPS3")
    for part in ("20.00 PFLOPS", "15.36 PFLOPS", "24.41 TiB", "2.56 PB/s", "53", "131", "rounding errors"):
        assert part in text


def test_an_estimate_of_a_model_shows_latency_throughput_and_cost() -> None:
    text = run("estimate", *SMALL)
    for part in ("Serial floor", "tok/s", "First token", "kWh", "Read a token", "Or rented", "memory-bound"):
        assert part in text


def test_an_estimate_as_json_is_in_base_units() -> None:
    found = json.loads(run("estimate", *SMALL, "--json"))
    assert found["totals"]["memory_bytes"] == 2 * 32 * 2**30
    assert found["one_stream"]["floor_s"] < found["one_stream"]["expected_s"]
    assert found["classic"] == []


def test_machines_may_be_listed_repeated_and_mixed() -> None:
    found = json.loads(run("estimate", "--machines", "8xN100,1xRTX-3060", "--machines", "2xPi5", "--json"))
    assert found["totals"]["num_machines"] == 11


def test_streams_context_and_price_are_taken_into_account() -> None:
    few = json.loads(run("estimate", *SMALL, "--json", "--context", "1000"))
    many = json.loads(run("estimate", *SMALL, "--json", "--context", "8000", "--usd-per-kwh", "0.24"))
    assert many["model"]["kv_bytes_per_stream"] == 8 * few["model"]["kv_bytes_per_stream"]
    per_kwh = many["upkeep"]["electricity_usd_per_million"] / many["upkeep"]["kwh_per_million"]
    assert per_kwh == pytest.approx(0.24)


def test_a_catalogue_of_ones_own_adds_machines(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[machine.phone]\nlike = "raspberry-pi-5"\ntitle = "old phone"\nunverified = true\nmemory = "4 GiB"\n'
    )
    text = run("estimate", "--machines", "40xphone", "--catalogue", str(own))
    assert "old phone" in text


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        (["estimate"], ConfigError, "No machines"),
        (["estimate", "--machines", "3xPS33"], ConfigError, "ps3"),
        (["estimate", "--machines", "3xPS3", "--model", "kimi-k4"], ConfigError, "kimi-k3"),
        (["estimate", "--machines", "3xPS3", "--link", "gigabyte"], ConfigError, "gigabit"),
        (["estimate", "--machines", "3xPS3", "--model", "kimi-k3"], DoesNotFit, "does not fit"),
        (["estimate", "--machines", "3xPS3", "--catalogue", "absent.toml"], ConfigError, "absent.toml"),
        (["assess", "--machines", "3xPS3"], ConfigError, "No model"),
        (["assess", *SMALL, "--latency", "200"], ConfigError, "without a unit"),
        (["assess", *SMALL, "--latency", "0 s"], ConfigError, "more than 0"),
        (["assess", *SMALL, "--latency", "5 GB"], ConfigError, "not seconds"),
        (["assess", *SMALL, "--availability", "100 %"], ConfigError, "below 100"),
        (["assess", *SMALL, "--failures", "netcafe2"], ConfigError, "net-cafe"),
        (["assess", *SMALL, "--against", "n100"], ConfigError, "no rent"),
    ],
)
def test_bad_input_is_answered_with_what_is_wrong(
    arguments: list[str], error: type[ConfigError], part: str
) -> None:
    with pytest.raises(error) as caught:
        run(*arguments)
    assert part in str(caught.value)


def test_an_assessment_answers_four_questions_and_six_checks() -> None:
    text = run("assess", *SMALL, "--latency", "50 ms")
    assert text.count("formula") == 10
    assert text.count("turns at") == 10
    for part in ("Four questions", "Six checks", "Ways to split", "rounds", "tensor"):
        assert part in text


def test_an_assessment_of_what_does_not_fit_is_no_error() -> None:
    text = run("assess", "--machines", "8xPS3", "--model", "llama-70b", "--quant", "q4_0")
    assert "does not fit" in text
    assert "NO  1. Does it fit?" in text


def test_an_assessment_as_json_has_verdicts_and_margins() -> None:
    found = json.loads(run("assess", *SMALL, "--json"))
    assert {entry["verdict"] for entry in found["questions"]} <= {"yes", "no", "close", "unknown"}
    assert len(found["splits"]) == 2


def test_the_catalogue_lists_names_and_shows_where_a_figure_comes_from() -> None:
    text = run("catalogue")
    for part in ("rtx-5090", "kimi-k3", "gigabit", "net-cafe", "q4_k_m"):
        assert part in text
    one = run("catalogue", "PS3")
    assert "not verified" in one
    assert "Rambus" in one
    with pytest.raises(ConfigError, match="ps3"):
        run("catalogue", "PS33")
