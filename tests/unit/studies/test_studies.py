"""Studies: every page can be computed, is the committed one, and says what would prove it wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.catalogue.loader import load_catalogue
from shoal.simulator.scenario_file import read_scenario
from shoal.studies.__main__ import STUDIES

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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_scenario_can_be_read(path: Path) -> None:
    assert read_scenario(path, load_catalogue()).cluster.num_machines > 0
