"""Threads share the arenas that they are told to share."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each thread frees what it took while others still hold theirs, so that without a limit each has an arena.
_COUNT_ARENAS = """
import ctypes, sys, threading
from shoal.control.malloc_arenas import limit_malloc_arenas
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
limit = int(sys.argv[1])
if limit and not limit_malloc_arenas(limit):
    sys.exit(77)
barrier = threading.Barrier(16)
def take():
    barrier.wait()
    held = [libc.malloc(3000) for _ in range(100)]
    barrier.wait()
    for one in held:
        libc.free(one)
threads = [threading.Thread(target=take) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.malloc_stats()
"""


def num_arenas(limit: int) -> int:
    """Of a process with sixteen threads; 0: no limit."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ARENAS, str(limit)], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("this C library has no arenas")
    return done.stderr.count("Arena ")


def test_a_limit_on_arenas_holds() -> None:
    assert num_arenas(2) == 2
    assert num_arenas(0) > 2
