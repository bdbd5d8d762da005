"""`shoal bench` against Shoal's own gateway, and its arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from shoal.commands.api_load import StreamTimes, tokens_per_s
from shoal.commands.bench import bench
from shoal.core.sequence import FinishReason
from tests.unit.gateway.running_gateway import RunningGateway


def run(url: str, *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, arguments, env={"SHOAL_URL": url, "COLUMNS": "100"})


def stream(*arrivals_s: float, tokens: int) -> StreamTimes:
    return StreamTimes(0.0, list(arrivals_s), arrivals_s[-1], 16, tokens)


def test_a_rate_counts_only_while_all_streams_decode() -> None:
    early = stream(1.0, 2.0, 3.0, 4.0, 5.0, tokens=5)
    late = stream(2.0, 3.0, 4.0, 5.0, 6.0, tokens=5)
    assert tokens_per_s([early, late]) == pytest.approx(2.0)


def test_a_piece_that_holds_two_tokens_counts_as_two() -> None:
    assert tokens_per_s([stream(1.0, 2.0, 3.0, tokens=6)]) == pytest.approx(2.0)


def test_every_load_is_measured_as_often_as_asked(gateway: RunningGateway) -> None:
    gateway.follow("a", "b", "c", FinishReason.LENGTH)
    result = run(gateway.url, "--repeats", "2", "--json")
    assert result.exit_code == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert [len(row["values"]) for row in rows.values()] == [2] * len(rows)
    assert rows["answers, 8 at once"]["unit"] == "tok/s"
    assert rows["prompt of 1,024"]["median"] > 0


def test_a_prompt_that_does_not_fit_is_skipped_and_said(gateway: RunningGateway) -> None:
    result = run(gateway.url, "--repeats", "1")
    assert "2,048 tokens" in result.stderr
    assert "skipped" in result.stderr
    assert "prompt of 2,048" not in result.stdout
    assert "prompt of 1,024" in result.stdout


def test_answers_are_of_the_length_asked_for(gateway: RunningGateway) -> None:
    run(gateway.url, "--repeats", "1", "--tokens", "9")
    request = next(r for r in gateway.generator.requests if r.max_tokens == 9)
    assert (request.ignore_eog, request.sampling.temperature, len(request.prompt_tokens)) == (True, 0, 16)


def test_nothing_running_is_exit_one_with_advice(dead_url: str) -> None:
    result = run(dead_url)
    assert result.exit_code == 1
    assert "shoal serve MODEL" in result.stderr
