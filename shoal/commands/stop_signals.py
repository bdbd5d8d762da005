"""SIGTERM and SIGINT as one clean stop, wherever the main thread is.

While a command starts up the first signal is raised there, so that every `with` and `finally`
on the way unwinds. While it serves, the signal is handed to whoever waits for it. A second
SIGINT ends the process at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequested(KeyboardInterrupt):
    """The first signal. A KeyboardInterrupt, because asyncio and libraries let only that through."""


class StopSignals:
    """Installed for the length of a `with` block of the main thread.

    end_at_once: called for a second SIGINT, before the process ends with status 130.
    """

    def __init__(self, end_at_once: Callable[[], None]) -> None:
        self._end_at_once = end_at_once
        self._notify: Callable[[], None] | None = None
        self._is_unwinding = False
        self._before: dict[int, object] = {}
        self.first: signal.Signals | None = None

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def raise_if_requested(self) -> None:
        """Raise what a signal raised before, where it was lost: Python drops exceptions that are
        raised in callbacks from C."""
        if self.first is not None:
            raise StopRequested

    def unwind(self) -> None:
        """From here on the first signal is only noted: what stops must not be interrupted."""
        self._is_unwinding = True

    @contextmanager
    def notifying(self, notify: Callable[[], None]) -> Iterator[None]:
        """Within the block the first signal calls `notify` instead of raising."""
        self._notify = notify
        try:
            if self.first is not None:
                notify()
            yield
        finally:
            self._is_unwinding = True

    @contextmanager
    def postponing(self) -> Iterator[None]:
        """Within the block the first signal is only noted in `first`."""
        self._notify = _nothing
        try:
            yield
        finally:
            self._notify = None

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.first is not None:
            if number == signal.SIGINT:
                self._end_at_once()
                os._exit(128 + number)
            return
        self.first = signal.Signals(number)
        if self._is_unwinding:
            return
        if self._notify is not None:
            self._notify()
        else:
            raise StopRequested


def _nothing() -> None:
    pass
