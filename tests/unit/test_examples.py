"""What the documentation tells people to run, runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from shoal.catalogue.loader import load_catalogue
from shoal.planner.assumptions import default_assumptions
from shoal.planner.hypothesis import Truth, judge
from shoal.planner.hypothesis_estimate import EstimateMethod
from shoal.planner.hypothesis_file import read_hypotheses

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_python_example_prints_times_costs_and_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "foresee.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.count("a token") == 3
    assert "tok/s for two streams" in shown


def test_the_example_hypotheses_are_judged() -> None:
    catalogue = load_catalogue()
    method = EstimateMethod(catalogue, default_assumptions(catalogue))
    truths = [
        judge(hypothesis, method.figures(hypothesis)).truth
        for hypothesis in read_hypotheses(EXAMPLES / "hypothesis.toml")
    ]
    assert truths == [Truth.FALSE, Truth.TRUE, Truth.FALSE]
