"""A cable that takes its time: every frame comes out later by the same delay, in order, none lost.

The kernel's own netem is not everywhere. This one lies between two TAP devices and needs /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import threading
import time
from collections import deque
from types import TracebackType

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MAX_FRAME_BYTES = 65_536
MAX_FRAMES = 20_000
"""Under way in one direction; the rest is lost, as in a switch whose buffer is full."""


class SlowLink:
    """Two new network devices, `ends`, with the cable between them; they end with it."""

    def __init__(self, ends: tuple[str, str], delay_s: float) -> None:
        self.ends = ends
        self._delay_s = delay_s
        self._files = [_tap(name) for name in ends]
        self._queues: tuple[deque[tuple[float, bytes]], deque[tuple[float, bytes]]] = (deque(), deque())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> SlowLink:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for file in self._files:
            os.close(file)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end, file in enumerate(self._files):
                selector.register(file, selectors.EVENT_READ, end)
            while not self._ended.is_set():
                for key, _ in selector.select(self._wait_s()):
                    self._take_in(key.data)
                self._give_out(time.monotonic())

    def _wait_s(self) -> float:
        due_s = min((queue[0][0] for queue in self._queues if queue), default=float("inf"))
        return min(0.05, max(0.0, due_s - time.monotonic()))

    def _take_in(self, end: int) -> None:
        frame = os.read(self._files[end], MAX_FRAME_BYTES)
        if len(self._queues[end]) < MAX_FRAMES:
            self._queues[end].append((time.monotonic() + self._delay_s, frame))

    def _give_out(self, now_s: float) -> None:
        for end, queue in enumerate(self._queues):
            while queue and queue[0][0] <= now_s:
                os.write(self._files[1 - end], queue.popleft()[1])


def _tap(name: str) -> int:
    """A new TAP device; it lives as long as the file that is returned."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return file
