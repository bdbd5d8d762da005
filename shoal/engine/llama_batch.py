"""One `llama_batch`, allocated once and filled for every call.

Rows go in through its `embd` pointer, straight from the caller's buffer. llama.cpp is not told
their width or number: whoever fills this has checked them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.engine.interface import Chunk, Rows
from shoal.engine.llama_library import llama_cpp

_FLOAT_POINTER = ctypes.POINTER(ctypes.c_float)


class LlamaBatch:
    """Arrays for at most `max_tokens` tokens, and the structure that points at them."""

    def __init__(self, max_tokens: int) -> None:
        self._positions = np.zeros(max_tokens, np.int32)
        self._num_seqs = np.ones(max_tokens, np.int32)  # each token belongs to one sequence
        self._seqs = np.zeros(max_tokens, np.int32)
        self._seq_pointers = (self._seqs.ctypes.data + 4 * np.arange(max_tokens)).astype(np.uintp)
        self._is_output = np.zeros(max_tokens, np.int8)
        self._offsets = np.arange(max_tokens, dtype=np.int32)
        self._rows: Rows | None = None
        self.struct: Any = llama_cpp.llama_batch(
            n_tokens=0,
            token=None,
            embd=None,
            pos=_pointer(self._positions, ctypes.POINTER(llama_cpp.llama_pos)),
            n_seq_id=_pointer(self._num_seqs, ctypes.POINTER(ctypes.c_int32)),
            seq_id=_pointer(self._seq_pointers, ctypes.POINTER(ctypes.POINTER(llama_cpp.llama_seq_id))),
            logits=_pointer(self._is_output, ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, chunks: Sequence[Chunk], rows: Rows, *, outputs_all: bool) -> None:
        """Describe `chunks`, in order, with `rows` `[num_tokens, row_width]`, which is pointed at
        and kept alive until the next call.

        outputs_all: flag every row as an output, else only the last row of chunks with a draw.
        """
        end = 0
        for chunk in chunks:
            begin, end = end, end + len(chunk.tokens)
            self._seqs[begin:end] = chunk.seq
            np.add(self._offsets[: end - begin], chunk.start, out=self._positions[begin:end])
            self._is_output[begin:end] = outputs_all
            if chunk.draw is not None:
                self._is_output[end - 1] = 1
        self._point_at(rows, end)

    def pad(self, least_rows: int, least_outputs: int, *, outputs_all: bool) -> None:
        """Bring a batch of one chunk up to `least_rows` by repeating its last row at the positions
        behind it, which it cannot see; the caller takes their cells back. Bring the outputs, if
        there is one, up to `least_outputs` (2 at most) by flagging another row."""
        assert self._rows is not None
        num_tokens = self.struct.n_tokens
        num_missing = least_rows - num_tokens
        if num_missing > 0:
            last, stop = num_tokens - 1, num_tokens + num_missing
            self._seqs[num_tokens:stop] = self._seqs[last]
            np.add(
                self._offsets[1 : num_missing + 1],
                self._positions[last],
                out=self._positions[num_tokens:stop],
            )
            self._is_output[num_tokens:stop] = outputs_all
            repeated = np.repeat(self._rows[last:], num_missing, axis=0)
            self._point_at(np.concatenate([self._rows, repeated]), stop)
        flagged = np.flatnonzero(self._is_output[: self.struct.n_tokens])
        if 0 < len(flagged) < least_outputs:
            self._is_output[0 if flagged[0] else 1] = 1

    def _point_at(self, rows: Rows, num_tokens: int) -> None:
        self._rows = rows
        self.struct.n_tokens = num_tokens
        self.struct.embd = ctypes.cast(rows.ctypes.data, _FLOAT_POINTER)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, kind)
