"""Shoal's own products of quantised matrices with a few rows, in llama.cpp's place.

llama.cpp unpacks a matrix again for every row of a step, or for every four: a step of four answers takes
nearly four times as long as one. engine/native unpacks once for up to eight rows, with the same bits
as llama.cpp's `ggml_vec_dot_*` (docs/PERFORMANCE.md has the figures). It is compiled when Shoal is installed
and takes llama.cpp's place by being loaded first, which works where the dynamic linker is ELF's. Where it
is missing, or the CPU lacks AVX-512 VNNI, llama.cpp computes everything as before.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

from gguf import GGMLQuantizationType as Kind

from shoal.engine.native_library import put_in_front

SERVED_KINDS: Final = frozenset({Kind.Q4_K, Kind.Q6_K})
MOST_ROWS: Final = 24
"""Of a step: with more, llama.cpp's tiled products are as fast (docs/PERFORMANCE.md)."""

_REPLACED: Final = (
    "ggml_compute_forward_mul_mat_tiled",
    "ggml_compute_forward_mul_mat_id_tiled",
    "ggml_tiled_wdata_size",
)
_USED: Final = ("ggml_barrier", "quantize_row_q8_K")


class RowKernels:
    """Those of this process. They compute nothing before `connect` and `serve`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.shoal_kernels_connect.argtypes = [ctypes.c_void_p] * 5
        library.shoal_kernels_set_most_rows.argtypes = [ctypes.c_int]
        library.shoal_kernels_num_products.restype = ctypes.c_long
        self._library = library
        self._functions: list[ctypes.c_void_p] = []
        self.most_rows = 0

    @property
    def num_products(self) -> int:
        """Computed here so far, in this process."""
        return int(self._library.shoal_kernels_num_products())

    def connect(self, llama: ctypes.CDLL) -> bool:
        """Say where llama.cpp's own functions are. False where it has none by these names. It tiles nothing
        before `tile`: at its first tiled product it reads for good whether it may (engine/invariance.py)."""
        try:
            functions = [getattr(llama, name) for name in (*_REPLACED, *_USED)]
        except AttributeError:
            return False
        self._functions = [ctypes.cast(each, ctypes.c_void_p) for each in functions]
        self.tile(False)
        return True

    def tile(self, may_tile: bool) -> None:
        """Whether products that are not computed here may be llama.cpp's tiled ones."""
        replaced, used = self._functions[: len(_REPLACED)], self._functions[len(_REPLACED) :]
        self._library.shoal_kernels_connect(*(replaced if may_tile else [None] * len(replaced)), *used)

    def serve(self, most_rows: int) -> None:
        """From now on products with up to so many rows are computed here; 0: none."""
        self._library.shoal_kernels_set_most_rows(most_rows)
        self.most_rows = most_rows


def load_row_kernels(native: ctypes.CDLL | None) -> RowKernels | None:
    """Put them in front of llama.cpp's library. None where this machine has none, or llama.cpp was loaded
    first: then the linker does not ask them."""
    if native is None or "llama_cpp.llama_cpp" in sys.modules:
        return None
    if not native.shoal_kernels_suit_cpu():
        return None  # and not in front: llama.cpp would ask for its own tiled products, and be told no
    put_in_front(native)
    return RowKernels(native)
