"""llama.cpp's library, as llama-cpp-python loads it, with Shoal's own in front where the CPU suits it.

The only importer of `llama_cpp`: Shoal's must be loaded before it, once a process.
"""

from __future__ import annotations

import ctypes
from typing import Any

from shoal.engine.native_library import load_native
from shoal.engine.row_kernels import RowKernels, load_row_kernels

native: ctypes.CDLL | None = load_native()
_loaded: RowKernels | None = load_row_kernels(native)

from llama_cpp import llama_cpp  # noqa: E402

row_kernels: RowKernels | None = _loaded if _loaded and _loaded.connect(llama_cpp._lib) else None
"""None where llama.cpp computes everything itself. LlamaRuntime tries them before they serve."""

__all__ = ["ggml_function", "llama_cpp", "native", "row_kernels"]


def ggml_function(name: str, restype: Any, *argtypes: Any) -> Any:
    """A function of ggml, which llama-cpp-python does not declare. Tensors, graphs and contexts are passed by
    address."""
    function = getattr(llama_cpp._lib, name)
    function.restype, function.argtypes = restype, argtypes
    return function
