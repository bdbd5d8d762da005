"""`shoal test-hypothesis`: verdicts, exit status, and measuring a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from shoal.commands.judge_hypotheses import judge_hypotheses
from shoal.commands.live_measurement import LiveMeasurement, Timing, pieces_per_s
from shoal.core.errors import ConfigError
from shoal.gateway.client import endpoint_at
from shoal.planner.hypothesis import Claim, Hypothesis, Truth, judge
from tests.unit.commands.canned_server import CannedServer

TRUE = """
[hypothesis.small]
says = "an H100 holds a 30B model"
machines = "1xh100"
model = "qwen3-30b-a3b"
quant = "q4_0"
holds_model = true
token_time = "<= 1 s"
"""
FALSE = TRUE.replace("1 s", "1 us").replace("[hypothesis.small]", "[hypothesis.quick]")
OPEN = TRUE.replace('"<= 1 s"', '"<= 3 ms"').replace("[hypothesis.small]", "[hypothesis.close]")


def run(path: Path, text: str, *arguments: str) -> tuple[int, str]:
    path.write_text(text)
    app = typer.Typer()
    app.command()(judge_hypotheses)
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(path), *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize(
    ("text", "status", "word"),
    [
        (TRUE, 0, "TRUE"),
        (TRUE + FALSE, 1, "FALSE"),
        (TRUE + OPEN, 3, "UNDECIDED"),
        (OPEN + FALSE, 1, "FALSE"),
    ],
)
def test_the_exit_status_is_the_verdict(tmp_path: Path, text: str, status: int, word: str) -> None:
    code, shown = run(tmp_path / "hypothesis.toml", text)
    assert code == status
    assert f"{word} by estimate" in shown


def test_a_judgement_as_json_has_margins(tmp_path: Path) -> None:
    _, shown = run(tmp_path / "hypothesis.toml", TRUE, "--json")
    found = json.loads(shown)
    assert found["truth"] == "true"
    assert found["claims"][1]["margin"] > 1


def test_a_measurement_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no server to measure"):
        run(tmp_path / "hypothesis.toml", TRUE, "--by", "measurement")


def test_an_unknown_method_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="estimate"):
        run(tmp_path / "hypothesis.toml", TRUE, "--by", "estimat")


def test_a_name_that_is_not_known_is_found_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hypothesis\.small in .*hypothesis\.toml: No machine") as caught:
        run(tmp_path / "hypothesis.toml", TRUE.replace("1xh100", "1xh10"))
    assert "Did you mean h100" in str(caught.value)


def measured(server: CannedServer, num_pieces: int) -> Hypothesis:
    server.reply("/v1/models", 200, json.dumps({"data": [{"id": "toy"}]}).encode())
    piece = json.dumps({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]})
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    stream = [f"data: {piece}\n\n"] * num_pieces + [f"data: {end}\n\n", "data: [DONE]\n\n"]
    server.reply("/v1/chat/completions", 200, "".join(stream).encode(), content_type="text/event-stream")
    return Hypothesis(
        name="x", says="x", machines="1xh100", model="qwen3-8b", quantisation=None, link=None,
        failures="always-on", against="h100", streams=2, context_tokens=100, prompt_tokens=10,
        by="measurement", claims_to_hold=True,
        claims=(Claim("token_time", 1.0, "t"), Claim("throughput", 0.5, "r"), Claim("power", 1.0, "p")),
    )  # fmt: skip


def test_a_server_is_timed_as_a_client_sees_it(canned: CannedServer) -> None:
    hypothesis = measured(canned, 20)
    ticks = iter(range(1000))
    figures = LiveMeasurement(endpoint_at(canned.url), clock=lambda: next(ticks) * 0.01).figures(hypothesis)
    assert figures.known["token_time"].value == pytest.approx(0.01)
    assert figures.known["first_token"].value == pytest.approx(0.01)
    assert figures.known["throughput"].value > 0
    found = judge(hypothesis, figures)
    assert [claim.truth for claim in found.claims] == [
        Truth.TRUE,
        Truth.TRUE,
        Truth.TRUE,
        Truth.UNDECIDED,  # nobody measured the power
    ]


def test_streams_are_counted_while_all_of_them_decode() -> None:
    early, late = (Timing(0.0, tuple(start + 0.1 * n for n in range(20))) for start in (1.0, 1.5))
    assert pieces_per_s([early, late]) == pytest.approx(20.0, rel=0.1)


def test_streams_that_waited_for_others_do_not_count_as_parallel() -> None:
    first, second = (Timing(0.0, tuple(start + 0.1 * n for n in range(20))) for start in (1.0, 3.0))
    assert pieces_per_s([first, second]) == pytest.approx(10.0, rel=0.1)


def test_a_simulation_judges_what_an_estimate_cannot(tmp_path: Path) -> None:
    text = TRUE.replace("token_time", "first_token_p90")
    assert run(tmp_path / "a.toml", text)[0] == 3
    table = "[hypothesis.small.simulation]\nduration = '30 s'\nrate = '30 req/min'\nruns = 1\nanswer = 8\n"
    code, shown = run(tmp_path / "b.toml", text + table, "--by", "simulation")
    assert code == 0
    assert "TRUE by simulation (fine mode" in shown


def test_an_answer_too_short_to_time_is_refused(canned: CannedServer) -> None:
    hypothesis = measured(canned, 2)
    with pytest.raises(ConfigError, match="too few to time"):
        LiveMeasurement(endpoint_at(canned.url)).figures(hypothesis)
