"""Undivided models, run with llama.cpp's low-level API as its own programs do: token ids in, logits out.

Independent of shoal/engine on purpose: only the settings are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from shoal.engine.llama_library import llama_cpp
from shoal.engine.llama_runtime import llama_runtime


@dataclass(frozen=True)
class Settings:
    """What must be equal for equal bits."""

    cells: int
    max_sequences: int = 1
    max_batch_tokens: int = 128
    threads: int = 1


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one sequence; the logits behind the last are wanted if `wants`."""

    seq: int
    start: int
    tokens: Sequence[int]
    wants: bool = True


class UndividedModel:
    """The whole model in one context."""

    def __init__(self, path: Path, settings: Settings) -> None:
        llama_runtime()  # before it, llama.cpp tiles nothing, and would round otherwise than slices do
        model_params = llama_cpp.llama_model_default_params()
        model_params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        assert self._model, f"llama.cpp cannot load {path}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.cells
        params.n_batch = params.n_ubatch = settings.max_batch_tokens
        params.n_seq_max = settings.max_sequences
        params.n_threads = params.n_threads_batch = settings.threads
        params.kv_unified = True
        params.swa_full = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        assert self._context
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def __enter__(self) -> UndividedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def compute(self, pieces: Sequence[Piece]) -> list[NDArray[np.float32] | None]:
        """One batch. Logits float32 [n_vocab] for each piece that wants them."""
        num_tokens = sum(len(piece.tokens) for piece in pieces)
        batch = llama_cpp.llama_batch_init(num_tokens, 0, 1)
        try:
            batch.n_tokens = num_tokens
            index = 0
            ends: list[int] = []
            for piece in pieces:
                for offset, token in enumerate(piece.tokens):
                    batch.token[index] = token
                    batch.pos[index] = piece.start + offset
                    batch.n_seq_id[index] = 1
                    batch.seq_id[index][0] = piece.seq
                    batch.logits[index] = piece.wants and offset == len(piece.tokens) - 1
                    index += 1
                ends.append(index - 1)
            assert llama_cpp.llama_decode(self._context, batch) == 0
            return [
                self._logits(end) if piece.wants else None for piece, end in zip(pieces, ends, strict=True)
            ]
        finally:
            llama_cpp.llama_batch_free(batch)

    def _logits(self, row: int) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None
        values = (ctypes.c_float * self.n_vocab).from_address(address)
        return np.array(values, dtype=np.float32)
