"""What llama.cpp keeps once a process: its backends, its log, and the row kernels in front of it.

llama.cpp's log goes to Python's, quietly: every line at DEBUG, because its "errors" include much
that the caller handles. The last lines that it calls errors are kept, for the message of the
exception that follows a failed call.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import cache

from shoal.core.invariant_mode import TILED_ROWS
from shoal.engine.llama_library import llama_cpp, row_kernels
from shoal.engine.row_kernels import MOST_ROWS, RowKernels
from shoal.engine.row_kernels_check import agree_with_llama

_LOG = logging.getLogger(__name__)
_ERROR = 4  # GGML_LOG_LEVEL_ERROR (llama-cpp-python's own table is out of date)
_CONTINUED = 5  # GGML_LOG_LEVEL_CONT
_MAX_LINES_KEPT = 4
_INITIALISING = threading.Lock()


class LlamaRuntime:
    """llama.cpp, initialised. There is one: `llama_runtime()`.

    row_kernels: those that were tried and serve; None where llama.cpp computes everything itself.
    may_have_tiled: a slice was loaded that leaves the choice of kernels to llama.cpp, which makes
    some of it once a process.
    """

    def __init__(self) -> None:
        self.may_have_tiled = False
        self._errors: deque[str] = deque(maxlen=_MAX_LINES_KEPT)
        # ctypes does not keep the callback alive, llama.cpp calls it for as long as it runs.
        self._callback = llama_cpp.llama_log_callback(self._on_log)
        llama_cpp.llama_log_set(self._callback, None)
        llama_cpp.llama_backend_init()
        self.row_kernels = tried(row_kernels)
        if row_kernels is not None and self.row_kernels is None:
            self.may_have_tiled = True  # where llama.cpp does not ask them, trying them did

    def keep_tiled_rows_tiled(self) -> None:
        """For this process, for good: the row kernels compute only what llama.cpp would not tile, so that
        all rows of prompts take one kernel (engine/invariance.py)."""
        if self.row_kernels is not None:
            self.row_kernels.serve(TILED_ROWS - 1)

    def forget_errors(self) -> None:
        """Call before a call whose errors will be asked for."""
        self._errors.clear()

    def last_errors(self) -> str:
        """What llama.cpp logged as errors since `forget_errors`, as one line; "" if nothing."""
        return "; ".join(self._errors)

    def cpu_features(self) -> tuple[str, ...]:
        """What the CPU has that llama.cpp's kernels here were compiled to use, such as AVX512_VNNI."""
        pairs = llama_cpp.llama_print_system_info().decode("utf-8", "replace").split("|")
        named = (pair.rpartition(":")[2].partition("=") for pair in pairs)
        return tuple(name.strip() for name, _, value in named if value.strip() == "1")

    def _on_log(self, level: int, text: bytes, _user: object) -> None:
        wanted = level == _ERROR
        if not wanted and not _LOG.isEnabledFor(logging.DEBUG):
            return
        line = text.decode("utf-8", "replace").strip()
        if wanted and line:
            self._errors.append(line)
        if line and level != _CONTINUED:
            _LOG.debug("llama.cpp: %s", line)


def tried(kernels: RowKernels | None) -> RowKernels | None:
    """The kernels, serving, if they have llama.cpp's bits here; else None, and a warning."""
    if kernels is None:
        return None
    agrees = agree_with_llama(kernels)
    kernels.tile(True)
    if not agrees:
        _LOG.warning(
            "Shoal's row kernels do not give llama.cpp's results with the installed llama-cpp-python, so "
            "llama.cpp computes everything, more slowly. Install the version that pyproject.toml pins."
        )
        return None
    kernels.serve(MOST_ROWS)
    return kernels


def llama_runtime() -> LlamaRuntime:
    """The process's llama.cpp, initialised at the first call, from any thread. A cache and not a global
    that is set, because the log callback and the backends belong to the process, not to an engine."""
    with _INITIALISING:
        return _runtime()


@cache
def _runtime() -> LlamaRuntime:
    return LlamaRuntime()
