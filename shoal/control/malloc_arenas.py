"""How much memory the C library keeps for itself in a process whose threads come and go.

glibc gives threads arenas of their own, up to eight a core, and returns little of what was freed in them.
Each connection to Ray brings a dozen threads and takes them away again, so that the head's memory grew by
20 MiB over its first dozen connections, though nothing was held. With two arenas it does not.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # of glibc's malloc.h
HEAD_ARENAS = 2  # the interpreter's threads take turns anyway; the second is for ZeroMQ's and Ray's


def limit_malloc_arenas(num_arenas: int = HEAD_ARENAS) -> bool:
    """Have all threads of this process share so many arenas. Call it before there are threads. False where
    the C library has no such setting (musl): nothing is changed then."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, num_arenas))
