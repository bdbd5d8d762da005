"""Studies: every page can be computed, is the committed one, and says what would prove it wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.catalogue.loader import load_catalogue
from shoal.planner.hypothesis_file import read_hypotheses
from shoal.simulator.scenario_file import read_scenario
from shoal.studies.__main__ import STUDIES
from shoal.studies.scale import bends, elasticity

ROOT = Path(__file__).parents[3]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.toml")) if "[scenario]" in path.read_text()]
QUICK = ("consoles", "cost", "cast_off")


@pytest.mark.parametrize("name", QUICK)
def test_the_committed_page_is_what_the_code_computes(name: str) -> None:
    assert (ROOT / "docs" / "studies" / f"{name}.md").read_text() == STUDIES[name]().markdown()


@pytest.mark.parametrize("name", STUDIES)
def test_every_page_says_what_is_assumed_and_what_would_prove_it_wrong(name: str) -> None:
    text = (ROOT / "docs" / "studies" / f"{name}.md").read_text()
    for heading in ("## What is computed", "## What is assumed", "## What would prove it wrong"):
        assert heading in text


def test_an_unknown_study_is_named_with_the_nearest() -> None:
    command = [sys.executable, "-m", "shoal.studies", "console"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "consoles" in found.stderr


def test_a_curve_bends_where_twice_the_machines_bring_less_than_half_as_much_again() -> None:
    assert elasticity((2.0, 5.0), (8.0, 20.0)) == pytest.approx(1.0)
    assert bends({8: 10.0, 16: 19.0, 32: 28.0, 64: 28.0}) == [
        (16, 32, pytest.approx(0.559, abs=1e-3)),
        (32, 64, 0.0),
    ]


@pytest.mark.parametrize("name", ["hypothesis", "hypothesis-simulated"])
def test_every_example_hypothesis_can_be_read(name: str) -> None:
    assert len(read_hypotheses(ROOT / "examples" / f"{name}.toml")) > 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_scenario_can_be_read(path: Path) -> None:
    assert read_scenario(path, load_catalogue()).cluster.num_machines > 0
