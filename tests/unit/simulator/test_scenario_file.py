"""Scenario files: what a good one means, and that every mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.errors import ConfigError
from shoal.simulator.cell_plan import deal_machines, plan_cell
from shoal.simulator.lengths import Fixed, Geometric
from shoal.simulator.scenario import Mode
from shoal.simulator.scenario_file import read_scenario
from shoal.simulator.workload import Bursts, Closed, Poisson, Trace

GOOD = """
[scenario]
machines = "5xN100, 2xRTX-3060"
model = "qwen3-30b-a3b"
quant = "q4_k_m"
duration = "10 min"

[serving]
cell_machines = 3
spares = 1
survive = 1
streams = 4
context = 2048

[requests]
rate = "30 req/min"
prompt = { kind = "fixed", tokens = 100 }
output = { kind = "geometric", mean = 50.0, most = 400 }

[failures]
model = "net-cafe"
polite = "50 %"
"""


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def write(folder: Path, text: str) -> Path:
    path = folder / "wanted.toml"
    path.write_text(text)
    return path


def test_a_scenario_is_read_in_base_units(tmp_path: Path, catalogue: Catalogue) -> None:
    found = read_scenario(write(tmp_path, GOOD), catalogue)
    assert (found.name, found.mode, found.duration_s) == ("wanted", Mode.FINE, 600.0)
    assert found.workload.pattern == Poisson(0.5)
    assert (found.workload.prompt, found.workload.output) == (Fixed(100), Geometric(50.0, 400))
    assert found.churn is not None
    assert (found.churn.model.name, found.churn.polite_share) == ("net-cafe", 0.5)
    assert found.link.name == "gigabit"
    assert found.load_bytes_per_s == found.link.bytes_per_s


def test_cells_take_all_machines_and_the_last_one_the_rest(tmp_path: Path, catalogue: Catalogue) -> None:
    found = read_scenario(write(tmp_path, GOOD), catalogue)
    cells = deal_machines(found)
    assert [len(cell) for cell in cells] == [3, 4]
    plan = plan_cell(found, cells[1], 1)
    assert plan.ranges[0].start == 0
    assert plan.ranges[-1].end == found.model.num_layers
    assert len(plan.machines) == 4
    first = next(iter(plan.machines.values()))
    assert first.name == max(cells[1], key=lambda kind: kind.speed.memory_bytes_per_s).name


@pytest.mark.parametrize(
    ("requests", "pattern"),
    [
        ('arrivals = "closed"\nusers = 3\nthink_time = "2 s"', Closed(3, 2.0)),
        (
            'arrivals = "bursts"\ncalm_rate = "1 req/s"\nburst_rate = "9 req/s"\n'
            'calm_time = "1 min"\nburst_time = "5 s"',
            Bursts(1.0, 9.0, 60.0, 5.0),
        ),
    ],
)
def test_other_patterns_are_read(
    tmp_path: Path, catalogue: Catalogue, requests: str, pattern: object
) -> None:
    text = GOOD.replace('rate = "30 req/min"', requests)
    assert read_scenario(write(tmp_path, text), catalogue).workload.pattern == pattern


def test_a_trace_lies_beside_the_scenario(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "t.csv").write_text("at_s,prompt_tokens,output_tokens\n1,5,6\n")
    text = GOOD.replace('rate = "30 req/min"', 'arrivals = "trace"\ntrace = "t.csv"')
    found = read_scenario(write(tmp_path, text), catalogue)
    assert isinstance(found.workload.pattern, Trace)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("5xN100", "5xN1000", r"machines of scenario in .*wanted.toml, line 3: .*did you mean N100|N100"),
        ("5xN100", "0xN100", "whole number from 1"),
        ("qwen3-30b-a3b", "qwen3-30b-a3", r"model of scenario.*line 4: No model"),
        ('duration = "10 min"', 'duration = "10"', "without a unit"),
        ('duration = "10 min"', 'duration = "-1 s"', "0 or more"),
        ('duration = "10 min"', 'duration = "0 s"', "duration of scenario.*must be more"),
        ('duration = "10 min"', "", "duration of scenario.*is missing"),
        ("[serving]", "[servings]", r"\[servings\].*did you mean serving"),
        ("survive = 1", "survives = 1", "survives of serving.*did you mean survive"),
        ("cell_machines = 3", "cell_machines = 8", "is 8, of 7 machines"),
        ("spares = 1", "spares = 3", "leaves none of 3 machines"),
        ("streams = 4", "streams = 0", "streams of serving"),
        ('rate = "30 req/min"', 'rate = "30 s"', "measures seconds"),
        ('rate = "30 req/min"', 'arrivals = "poison"\nrate = "1 req/s"', "did you mean poisson"),
        ('kind = "fixed", tokens = 100', 'kind = "fixed"', "tokens of requests.prompt.*is missing"),
        ('kind = "fixed", tokens = 100', 'kind = "uniform", least = 9, most = 3', "below least"),
        ("most = 400", "most = 2000", "may come to 2100 tokens.*2048"),
        ("net-cafe", "net-coffee", "failures.*did you mean|net-cafe"),
        ('polite = "50 %"', 'polite = "150 %"', "more than 100 %"),
        ("[failures]", "[failures", "is not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, catalogue: Catalogue, old: str, new: str, says: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=says) as error:
        read_scenario(write(tmp_path, GOOD.replace(old, new, 1)), catalogue)
    if "whole number" not in says:
        assert "wanted.toml" in str(error.value)


def test_the_fine_mode_refuses_more_machines_than_it_can_take(tmp_path: Path, catalogue: Catalogue) -> None:
    many = GOOD.replace("5xN100", "5000xN100")
    assert read_scenario(write(tmp_path, many), catalogue).mode is Mode.COARSE
    with pytest.raises(ConfigError, match="up to 256 machines"):
        read_scenario(write(tmp_path, many.replace("[serving]", 'mode = "fine"\n[serving]')), catalogue)


def test_a_cell_that_cannot_hold_the_model_says_what_it_has(tmp_path: Path, catalogue: Catalogue) -> None:
    text = GOOD.replace("qwen3-30b-a3b", "llama-70b")
    found = read_scenario(write(tmp_path, text), catalogue)
    with pytest.raises(ConfigError, match=r"cannot hold .*usable"):
        plan_cell(found, deal_machines(found)[0], 0)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, catalogue: Catalogue) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_scenario(tmp_path / "none.toml", catalogue)
