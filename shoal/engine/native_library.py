"""Shoal's own C code, compiled when Shoal is installed: what Python would be too slow for.

It may be missing, where there was no compiler: everything works without it, more slowly.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import Final

_NAME: Final = "shoal.engine._native"


def load_native() -> ctypes.CDLL | None:
    """None where it was not compiled. Other libraries do not find its functions before `put_in_front`."""
    found = importlib.util.find_spec(_NAME) if sys.platform == "linux" else None
    if found is None or found.origin is None:
        return None
    return ctypes.CDLL(found.origin)


def put_in_front(native: ctypes.CDLL) -> None:
    """Libraries that are loaded later find its functions before their own."""
    ctypes.CDLL(native._name, mode=ctypes.RTLD_GLOBAL)
