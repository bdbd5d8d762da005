"""What a run writes: the same bytes for the same seed, and files that others can open."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.simulator.fine import FineSimulation
from shoal.simulator.plots import is_plotting_possible
from shoal.simulator.report import report_fine
from shoal.simulator.report_files import report_text, write_report, write_requests
from shoal.simulator.run_plots import plots_of
from shoal.simulator.spread import spread, weighted_spread
from shoal.simulator.trace_events import trace_of
from tests.unit.simulator.toy_scenarios import shaky


def write(folder: Path, seed: int = 3) -> dict[str, bytes]:
    result = FineSimulation(shaky(duration_s=30.0), seed, keep_batches=500).run()
    report = report_fine(result, seed)
    write_report(report, result.timeline, plots_of(report, result.timeline, result.requests), folder)
    write_requests(result, folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    assert set(one) >= {"report.json", "report.md", "requests.csv", "timeline.csv", "trace.json"}
    assert one == two
    assert write(tmp_path / "other", seed=4) != one


@pytest.mark.skipif(not is_plotting_possible(), reason="matplotlib is not installed")
def test_every_plot_is_written_as_png_and_svg(tmp_path: Path) -> None:
    files = write(tmp_path)
    for name in ("throughput", "latency", "busy"):
        assert files[f"{name}.png"].startswith(b"\x89PNG")
        assert b"<svg" in files[f"{name}.svg"]


def test_the_csv_has_a_row_for_every_request(tmp_path: Path) -> None:
    files = write(tmp_path)
    rows = list(csv.DictReader(files["requests.csv"].decode().splitlines()))
    report = json.loads(files["report.json"])
    assert len(rows) == sum(report["outcomes"].values())
    assert {row["outcome"] for row in rows} <= set(report["outcomes"])


def test_the_trace_keeps_to_the_trace_event_format() -> None:
    result = FineSimulation(shaky(duration_s=30.0), 3, keep_batches=200).run()
    events = trace_of(result)["traceEvents"]
    by_phase: dict[str, int] = {}
    for event in events:
        by_phase[event["ph"]] = by_phase.get(event["ph"], 0) + 1
        assert isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert 0 <= event["ts"] <= 30.0e6
    assert by_phase["X"] == 200
    assert by_phase["b"] == by_phase["e"] == len(result.requests)
    assert by_phase["i"] == len(result.machine_events) > 0
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")


def test_batches_of_one_machine_follow_one_another_in_whole_microseconds() -> None:
    """Viewers mix up what overlaps by a rounding error."""
    result = FineSimulation(shaky(duration_s=30.0), 3, keep_batches=5000).run()
    ends: dict[tuple[int, int], int] = {}
    touching = 0
    batches = [event for event in trace_of(result)["traceEvents"] if event["ph"] == "X"]
    for event in sorted(batches, key=lambda event: event["ts"]):
        machine = event["pid"], event["tid"]
        assert isinstance(event["ts"], int)
        assert isinstance(event["dur"], int)
        assert event["ts"] >= ends.get(machine, 0)
        touching += event["ts"] == ends.get(machine)
        ends[machine] = event["ts"] + event["dur"]
    assert touching > 50


def test_a_partial_report_says_so() -> None:
    def interrupt(done_s: float, total_s: float) -> None:
        if done_s > 5.0:
            raise KeyboardInterrupt

    report = report_fine(FineSimulation(shaky(duration_s=30.0), 3).run(interrupt), 3)
    assert "Partial: interrupted after" in report_text(report, has_plots=False)


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(tmp_path / "file")


def test_percentiles_are_values_that_occurred() -> None:
    found = spread([float(n) for n in range(1, 101)])
    assert (found.p50, found.p90, found.p99, found.most, found.mean) == (50.0, 90.0, 99.0, 100.0, 50.5)
    assert spread([]).count == 0


def test_weights_count_as_repetitions() -> None:
    import numpy as np

    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 8.0, 1.0])
    assert weighted_spread(values, weights) == spread([1.0] * 8 + [2.0, 3.0])
