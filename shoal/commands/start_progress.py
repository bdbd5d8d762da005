"""What a person sees while `shoal serve` comes up: one bar a phase, or one line where no terminal is."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from shoal.control.start_plan import StartPhase

_BYTE_PHASES = frozenset({StartPhase.FETCH, StartPhase.CUT})


class StartProgress:
    """`report` is what the controller calls. Bars go to standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(), _Amount())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[StartPhase, TaskID] = {}

    def __enter__(self) -> StartProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def report(self, phase: StartPhase, num_done: int, num_total: int) -> None:
        """Show that `phase` has come this far; it appears with its first amount."""
        if phase in _BYTE_PHASES and num_total == 0:
            return  # nothing to fetch, as it turned out
        if phase not in self._tasks:
            self._begin(phase, num_total)
        self._bars.update(self._tasks[phase], completed=num_done, total=num_total)

    def _begin(self, phase: StartPhase, num_total: int) -> None:
        for task in self._bars.tasks:  # what the cache had was not reported to the last byte
            self._bars.update(task.id, completed=task.total)
        unit = "bytes" if phase in _BYTE_PHASES else "parts"
        self._tasks[phase] = self._bars.add_task(phase.value, total=num_total, unit=unit)
        if not self._console.is_terminal:
            self._console.out(phase.value)


class _Amount(ProgressColumn):
    """`312 / 940 MiB` or `1 / 3`."""

    def render(self, task: Task) -> Text:
        total = task.total or 0
        if task.fields["unit"] == "bytes":
            return Text(f"{task.completed / 2**20:.0f} / {total / 2**20:.0f} MiB")
        return Text(f"{task.completed:.0f} / {total:.0f}" if total > 1 else "")
