"""Progress bars for whatever reports what it has done, and of how much. Nothing is drawn where standard
error is no terminal; standard output stays free for results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextmanager
def byte_progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """Yields the function to report (bytes done, bytes in all) to. Nothing is drawn before its first call."""
    bar = _bar(BarColumn(), DownloadColumn(), TransferSpeedColumn())
    task = bar.add_task(description, total=None, visible=False)

    def report(num_done: int, num_total: int) -> None:
        bar.update(task, completed=num_done, total=num_total, visible=True)

    with bar:
        yield report


@contextmanager
def share_progress(description: str) -> Iterator[Callable[[float, float], None]]:
    """Yields the function to report (done, in all) to, in whatever unit."""
    bar = _bar(BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    task = bar.add_task(description)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bar(*columns: ProgressColumn) -> Progress:
    bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True))
    bar.disable = not bar.console.is_terminal
    return bar
