"""A study's page: Markdown with computed tables, and what would prove it wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.simulator.plots import Plot, draw_plots


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Rows of texts under a heading. note: below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        head = [f"## {self.title}", "", _row(self.columns), _row(["---"] * len(self.columns))]
        foot = ["", self.note] if self.note else []
        return "\n".join([*head, *(_row(row) for row in self.rows), *foot])


@dataclass(frozen=True, slots=True)
class Page:
    """One study. name: of its files, and of its command."""

    name: str
    title: str
    summary: str
    tables: Sequence[TableBlock]
    computed: str
    assumed: str
    falsified_by: str
    plots: Sequence[Plot] = field(default=())

    def write(self, folder: Path) -> None:
        """NAME.md and its plots. Raises ConfigError where the folder cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.name}.md").write_text(self.markdown())
            draw_plots(self.plots, folder)
        except OSError as error:
            raise ConfigError(f"The study cannot be written to {folder}: {error}.") from error

    def markdown(self) -> str:
        parts = [
            f"# {self.title}",
            f"Written by `python -m shoal.studies {self.name}`; do not edit. Every figure below is computed.",
            self.summary,
            *(table.markdown() for table in self.tables),
            *(f"![{plot.title}]({plot.name}.svg)" for plot in self.plots),
            f"## What is computed\n\n{self.computed}",
            f"## What is assumed\n\n{self.assumed}",
            f"## What would prove it wrong\n\n{self.falsified_by}",
        ]
        return "\n\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
