"""Plots of figures, as PNG and SVG. The only file that knows matplotlib, which is an optional part.

The same figures give the same bytes: no dates, no random ids.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.core.errors import ConfigError

COLOURS = ("#1f6f8b", "#e07a3f", "#5b8c5a", "#8e5ea2", "#b8433f", "#6b6b6b")


@dataclass(frozen=True, slots=True)
class Line:
    """One row of points with a name. style: joined points, steps, bars, or points alone."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "steps", "bars", "points"] = "line"


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture. name: of its files."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    is_x_log: bool = False
    is_y_log: bool = False


def is_plotting_possible() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def require_plotting() -> None:
    """Raises ConfigError where matplotlib is not installed."""
    if not is_plotting_possible():
        raise ConfigError(
            "Plots need matplotlib, which is not installed.",
            next_step="Install it: pip install 'shoal[studies]'.",
        )


def draw_plots(plots: Sequence[Plot], folder: Path) -> None:
    """NAME.png and NAME.svg in `folder`; nothing without matplotlib. Raises OSError."""
    if not is_plotting_possible():
        return
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "shoal", "font.size": 9, "svg.fonttype": "none"}):
        for plot in plots:
            _draw(plot, folder)


def _draw(plot: Plot, folder: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for index, line in enumerate(plot.lines):
        colour = COLOURS[index % len(COLOURS)]
        match line.style:
            case "line":
                marker = "o" if len(line.x) < 30 else None
                axes.plot(line.x, line.y, label=line.label, color=colour, marker=marker, markersize=3)
            case "steps":
                axes.step(line.x, line.y, where="post", label=line.label, color=colour)
            case "points":
                axes.plot(line.x, line.y, "o", label=line.label, color=colour, markersize=4)
            case "bars":
                axes.bar(line.x, line.y, label=line.label, color=colour)
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.is_x_log:
        axes.set_xscale("log")
    if plot.is_y_log:
        axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    if len(plot.lines) > 1:
        axes.legend()
    figure.savefig(folder / f"{plot.name}.png", dpi=120, metadata={"Software": None})
    figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None})
