"""A progress bar in bytes, for whatever reports (bytes done, bytes in all)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


@contextmanager
def byte_progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """Yields the function to report to. Nothing is drawn before its first call, nor where standard
    error is no terminal; standard output stays free for results."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.disable = not bar.console.is_terminal
    task = bar.add_task(description, total=None, visible=False)

    def report(num_done: int, num_total: int) -> None:
        bar.update(task, completed=num_done, total=num_total, visible=True)

    with bar:
        yield report
