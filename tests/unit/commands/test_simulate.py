"""`shoal simulate` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import app
from shoal.core.errors import ConfigError
from shoal.simulator.fine import FineResult, FineSimulation

SCENARIO = """
[scenario]
machines = "3xRTX-3060"
model = "qwen3-8b"
quant = "q4_k_m"
duration = "30 s"
[serving]
streams = 2
context = 512
[requests]
rate = "20 req/min"
prompt = { kind = "fixed", tokens = 50 }
output = { kind = "fixed", tokens = 10 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "three.toml"
    found.write_text(SCENARIO)
    return found


def test_it_shows_the_figures(path: Path) -> None:
    found = CliRunner().invoke(app, ["simulate", str(path), "--seed", "2"], catch_exceptions=False)
    assert found.exit_code == 0
    assert "Throughput" in found.stdout
    assert "seed 2" in found.stdout


def test_it_prints_json_and_writes_files(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["simulate", str(path), "--out", str(out), "--json"]
    found = CliRunner().invoke(app, command, catch_exceptions=False)
    assert json.loads(found.stdout) == json.loads((out / "report.json").read_text())
    assert (out / "trace.json").exists()


def test_an_interruption_still_reports_and_says_so(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FineSimulation.run

    def interrupted(simulation: FineSimulation, progress: object) -> FineResult:
        def interrupt(done_s: float, total_s: float) -> None:
            if done_s > 10.0:
                raise KeyboardInterrupt

        return whole(simulation, interrupt)

    monkeypatch.setattr(FineSimulation, "run", interrupted)
    out = tmp_path / "out"
    found = CliRunner().invoke(app, ["simulate", str(path), "--out", str(out)])
    assert found.exit_code == 130
    assert "Interrupted" in found.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["is_partial"]
    assert 10.0 < report["elapsed_s"] < 30.0


def test_a_scenario_that_does_not_fit_is_an_error(path: Path) -> None:
    path.write_text(SCENARIO.replace("qwen3-8b", "llama-70b").replace("3xRTX", "1xRTX"))
    with pytest.raises(ConfigError, match="cannot hold"):
        CliRunner().invoke(app, ["simulate", str(path)], catch_exceptions=False)
