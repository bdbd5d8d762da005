"""Tables and plots from what the benchmarks wrote.

    python -m benchmarks.report results.json --plot docs/performance.svg
    python -m benchmarks.report --soak soak.csv --plot docs/soak.svg

Plots need matplotlib, which `pip install -e .[dev]` brings.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path
from typing import Any

YARDSTICK = "undivided"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--soak", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.results:
        results = json.loads(options.results.read_text())
        print(table(results))
        if options.plot:
            plot_ratios(results, options.plot)
    if options.soak and options.plot:
        plot_memory(options.soak, options.plot)


def table(results: dict[str, Any]) -> str:
    """Markdown: medians, and Shoal's as a ratio to each other contender, better above 1."""
    contenders = _contenders(results)
    heads = [
        "measured",
        *contenders,
        *(f"Shoal / {c}" for c in contenders if c != "shoal"),
        "CPU time, Shoal / undivided",
        "others used",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, pairs in results["scenarios"].items():
        cells = [name, *(f"{statistics.median(p['figures'][c] for p in pairs):.2f}" for c in contenders)]
        cells += [f"{_ratio(name, pairs, c):.2f}" for c in contenders if c != "shoal"]
        cells.append(f"{statistics.median(p['cpu_s']['shoal'] / p['cpu_s'][YARDSTICK] for p in pairs):.2f}")
        foreign = [pair["foreign_share"] for pair in pairs]
        cells.append(f"{min(foreign):.0%} to {max(foreign):.0%}")
        lines.append("| " + " | ".join(cells) + " |")
    rss = ", ".join(f"{rss_bytes / 2**20:.0f} MiB" for rss_bytes in results["worker_rss_bytes"])
    lines += [
        "",
        f"{results['machine']}; {results['model']} as {', '.join(results['layers'])}. Workers: {rss}. "
        f"First start {results['first_start_s']:.1f} s"
        f", with cutting; second {results['second_start_s']:.1f} s.",
    ]
    return "\n".join(lines)


def plot_ratios(results: dict[str, Any], path: Path) -> None:
    """Bars: Shoal's speed over each other contender's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    others = [c for c in _contenders(results) if c != "shoal"]
    names = list(results["scenarios"])
    figure, axes = pyplot.subplots(figsize=(8, 0.6 * len(names) + 1))
    height = 0.8 / len(others)
    for number, other in enumerate(others):
        ratios = [_ratio(name, results["scenarios"][name], other) for name in names]
        axes.barh([at + number * height for at in range(len(names))], ratios, height, label=f"over {other}")
    axes.set_yticks([at + (len(others) - 1) * height / 2 for at in range(len(names))], names)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("Shoal's speed, as a ratio (median of pairs)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def plot_memory(curve: Path, path: Path) -> None:
    """Lines: each process's memory over time, mapped files left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list[tuple[float, float]]] = {}
    with curve.open() as file:
        for row in csv.DictReader(file):
            point = float(row["at_s"]) / 60, int(row["anonymous_bytes"]) / 2**20
            lines.setdefault(row["process"], []).append(point)
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), label=name.rpartition(" ")[0])
    axes.set_xlabel("minutes of mixed load")
    axes.set_ylabel("memory without mapped files, MiB")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def _contenders(results: dict[str, Any]) -> list[str]:
    return list(next(iter(results["scenarios"].values()))[0]["figures"])


def _ratio(name: str, pairs: list[dict[str, Any]], other: str) -> float:
    ratio = statistics.median(pair["figures"]["shoal"] / pair["figures"][other] for pair in pairs)
    return 1 / ratio if name.endswith(", s") else ratio


if __name__ == "__main__":
    main()
