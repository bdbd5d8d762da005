"""The engine that computes a real model's slice, with unmodified llama.cpp.

Every slice is fed rows through `llama_batch.embd`; the first embeds its tokens itself. The hidden
state behind the last layer is read by the evaluation callback (hidden_tap). llama.cpp checks
neither the width of rows nor, on an empty sequence, positions: everything is checked here before
it is called. Flash attention is left to llama.cpp's choice in default mode: sliced and whole models
agree bit for bit either way, and on CPUs it is the faster one. Invariant mode: engine/invariance.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shoal.core.config import EngineConfig
from shoal.core.errors import ConfigError, EngineError, InvariantBroken, KvExhausted
from shoal.core.invariant_mode import TILED_ROWS
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Computed, Drawn, EngineLimits, Rows
from shoal.engine.invariance_check import check_invariance
from shoal.engine.llama_batch import LlamaBatch
from shoal.engine.llama_library import llama_cpp
from shoal.engine.llama_runtime import llama_runtime
from shoal.engine.llama_slice import LlamaSlice
from shoal.engine.pieces import compute_in_pieces, pieces_of
from shoal.engine.sampling import pick
from shoal.model.embedding import EmbeddingTable

_WHOLE = -1  # llama.cpp's "from the beginning" and "to the end" of a sequence
_WHOLE_STATE = 0  # llama_state_seq flags: everything, in host memory


class LlamaEngine:
    """One slice of a real model, loaded. See engine/interface.py."""

    def __init__(self, config: EngineConfig, layers: LayerRange, num_layers: int) -> None:
        """Raises ModelFileError, UnsupportedModel, InsufficientMemory or ConfigError."""
        self._layers = layers
        self._is_last = layers.end == num_layers
        self._n_ctx = config.n_ctx
        self._embedding = _open_embedding(config) if layers.start == 0 else None
        self._slice = LlamaSlice(config, layers, is_last=self._is_last)
        self._tap = self._slice.tap
        self._row_rules = self._slice.row_rules
        self._batch = LlamaBatch(max(config.max_batch_tokens, TILED_ROWS))
        self._logits_pointer = ctypes.POINTER(ctypes.c_float * self._slice.n_vocab)
        self._held: dict[int, int] = {}  # tokens of each sequence
        self._cells_used = 0
        self._limits = EngineLimits(
            cells=config.n_ctx * config.max_sequences if config.invariant else config.cells,
            max_sequences=config.max_sequences,
            max_batch_tokens=config.max_batch_tokens,
            row_width_in=self._slice.row_width_in,
            row_width_out=self._slice.row_width_out,
            mixes_chunks=True,
            can_trim=True,
            state_bytes=self._slice.state_bytes,
        )
        if config.invariant:
            self._prove_invariance(min(config.n_ctx, config.max_batch_tokens))

    @property
    def layers(self) -> LayerRange:
        return self._layers

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    @property
    def progress(self) -> int:
        return self._tap.watch.progress

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        """See engine/interface.py."""
        num_tokens = self._check_chunks(chunks)
        rows = self._checked_rows(chunks, rows, num_tokens)
        try:
            if self._row_rules is None:
                computed = self._compute_batch(chunks, rows)
            else:
                computed = compute_in_pieces(self._compute_batch, chunks, rows, self._row_rules.most)
        except BaseException:
            for chunk in chunks:
                self.clear(chunk.seq)
            raise
        self._count(chunks)
        return computed

    def clear(self, seq: int) -> None:
        """See engine/interface.py."""
        self._check_open()
        self._check_seq(seq)
        llama_cpp.llama_memory_seq_rm(self._slice.memory, seq, _WHOLE, _WHOLE)
        self._cells_used -= self._held.pop(seq, 0)

    def trim(self, seq: int, length: int) -> bool:
        """See engine/interface.py."""
        self._check_open()
        self._check_seq(seq)
        held = self._held.get(seq, 0)
        if length >= held:
            return True
        if length <= 0:
            self.clear(seq)
            return True
        if not llama_cpp.llama_memory_seq_rm(self._slice.memory, seq, length, _WHOLE):
            return False
        self._held[seq] = length
        self._cells_used -= held - length
        return True

    def save(self, seq: int) -> bytes:
        """See engine/interface.py."""
        self._check_open()
        self._check_seq(seq)
        context = self._slice.context
        size = llama_cpp.llama_state_seq_get_size_ext(context, seq, _WHOLE_STATE)
        buffer = (ctypes.c_uint8 * size)()
        written = llama_cpp.llama_state_seq_get_data_ext(context, buffer, size, seq, _WHOLE_STATE)
        if written != size:
            raise EngineError(f"llama.cpp gave {written} of {size} bytes of sequence {seq}'s state.")
        return bytes(buffer)

    def restore(self, seq: int, state: bytes, length: int) -> None:
        """See engine/interface.py."""
        self._check_open()
        self._check_seq(seq)
        if self._held.get(seq):
            raise InvariantBroken(f"Sequence {seq} on layers {self._layers} holds tokens already.")
        free = self._limits.cells - self._cells_used
        if length > free:
            raise KvExhausted(f"The state needs {length} cells of layers {self._layers}, {free} are free.")
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        context = self._slice.context
        read = llama_cpp.llama_state_seq_set_data_ext(context, buffer, len(state), seq, _WHOLE_STATE)
        last = llama_cpp.llama_memory_seq_pos_max(self._slice.memory, seq)
        if read != len(state) or last != length - 1:
            llama_cpp.llama_memory_seq_rm(self._slice.memory, seq, _WHOLE, _WHOLE)
            raise EngineError(
                f"llama.cpp took {read} of {len(state)} bytes of a state of {length} tokens on layers "
                f"{self._layers}, and then held positions up to {last}."
            )
        self._held[seq] = length
        self._cells_used += length

    def close(self) -> None:
        """See engine/interface.py."""
        self._slice.close()

    def logits(self, row: int) -> NDArray[np.float32]:
        """A copy of the logits that the last `compute` drew from, of batch row `row`. For tests."""
        return self._logits(row).copy()

    # ------------------------------------------------------------ invariant mode

    def _prove_invariance(self, max_tokens: int) -> None:
        try:
            for is_prompt in (True, False):
                compute = partial(self._all_rows, is_prompt=is_prompt)
                check_invariance(compute, self._slice.row_width_in, max_tokens, str(self._layers))
        except BaseException:
            self.close()
            raise

    def _all_rows(self, rows: Rows, lengths: Sequence[int], *, is_prompt: bool) -> NDArray[np.float32]:
        """Hidden states or logits of all `rows`; see invariance_check."""
        assert self._row_rules is not None
        outputs: list[NDArray[np.float32]] = []
        start = 0
        for length in lengths:
            whole = Chunk(0, start, [0] * length, num_prompt=length if is_prompt else 0)
            for chunk in pieces_of(whole, self._row_rules.most):
                num_tokens = len(chunk.tokens)
                computed = self._compute_batch([chunk], rows[start : start + num_tokens], wants_all=True)
                if computed.rows is None:
                    outputs += [self._logits(row)[np.newaxis].copy() for row in range(num_tokens)]
                else:
                    outputs.append(computed.rows)
                start += num_tokens
        self.clear(0)
        return np.concatenate(outputs)

    # ------------------------------------------------------------ before computing

    def _check_chunks(self, chunks: Sequence[Chunk]) -> int:
        """The number of tokens. Raises before anything is written."""
        self._check_open()
        num_tokens = 0
        next_start: dict[int, int] = {}
        for chunk in chunks:
            self._check_seq(chunk.seq)
            held = next_start.get(chunk.seq, self._held.get(chunk.seq, 0))
            self._check_chunk(chunk, held)
            next_start[chunk.seq] = held + len(chunk.tokens)
            num_tokens += len(chunk.tokens)
        if not 1 <= num_tokens <= self._limits.max_batch_tokens:
            raise InvariantBroken(
                f"A batch of {num_tokens} tokens; 1 to {self._limits.max_batch_tokens} are possible."
            )
        free = self._limits.cells - self._cells_used
        if num_tokens > free:
            raise KvExhausted(
                f"The batch needs {num_tokens} cells of layers {self._layers}, {free} are free."
            )
        return num_tokens

    def _check_chunk(self, chunk: Chunk, held: int) -> None:
        if chunk.start != held:
            raise InvariantBroken(
                f"Sequence {chunk.seq} holds {held} tokens on layers {self._layers}, "
                f"and a chunk starts at {chunk.start}."
            )
        if not chunk.tokens:
            raise InvariantBroken(f"A chunk of sequence {chunk.seq} has no tokens.")
        if held + len(chunk.tokens) > self._n_ctx:
            raise InvariantBroken(
                f"Sequence {chunk.seq} would have {held + len(chunk.tokens)} tokens; "
                f"the context is {self._n_ctx}."
            )
        if chunk.draw is not None and not self._is_last:
            raise InvariantBroken(f"Layers {self._layers} are not the last, no token can be drawn here.")

    def _checked_rows(self, chunks: Sequence[Chunk], rows: Rows | None, num_tokens: int) -> Rows:
        if self._embedding is not None:
            if rows is not None:
                raise InvariantBroken("The first slice takes tokens, not rows.")
            return self._embedding.rows([token for chunk in chunks for token in chunk.tokens])
        expected = (num_tokens, self._limits.row_width_in)
        if rows is None or rows.shape != expected or rows.dtype != np.float32:
            got = "none" if rows is None else f"{list(rows.shape)} of {rows.dtype}"
            raise InvariantBroken(
                f"Layers {self._layers} need float32 rows of shape {list(expected)}, got {got}."
            )
        return np.ascontiguousarray(rows)

    def _check_seq(self, seq: int) -> None:
        if not 0 <= seq < self._limits.max_sequences:
            raise InvariantBroken(f"Sequence {seq} is outside 0 to {self._limits.max_sequences - 1}.")

    def _check_open(self) -> None:
        if self._slice.is_closed:
            raise InvariantBroken(f"The engine of layers {self._layers} is closed.")

    # ------------------------------------------------------------ computing

    def _compute_batch(self, chunks: Sequence[Chunk], rows: Rows, *, wants_all: bool = False) -> Computed:
        """One graph; counts nothing. wants_all: all rows' logits, on the last slice."""
        outputs_all = wants_all or not self._is_last
        self._batch.fill(chunks, rows, outputs_all=outputs_all)
        if self._row_rules is not None:
            least = self._row_rules.prompt_least if chunks[0].num_prompt else self._row_rules.least
            self._batch.pad(least, self._row_rules.least, outputs_all=outputs_all)
        self._tap.expect(self._batch.struct.n_tokens)
        self._decode()
        if self._is_last:
            self._tap.raise_error()
            computed = Computed.by_last_slice(self._draws(chunks))
        else:
            computed = Computed(self._take_rows(chunks)[: len(rows)], (None,) * len(chunks))
        if self._batch.struct.n_tokens > len(rows):
            self._forget_after(chunks[0].seq, chunks[0].start + len(rows))
        return computed

    def _decode(self) -> None:
        runtime = llama_runtime()
        runtime.forget_errors()
        code = llama_cpp.llama_decode(self._slice.context, self._batch.struct)
        self._tap.done()
        if code == 0:
            return
        reason = {
            1: "llama.cpp found no room in its cache, though enough cells are free",
            2: "it was aborted",
            -1: "llama.cpp refused the batch",
            -2: "llama.cpp could not allocate memory for it",
        }.get(code, "llama.cpp failed while computing it")
        detail = runtime.last_errors()
        raise EngineError(
            f"A batch of {self._batch.struct.n_tokens} tokens failed on layers {self._layers}: {reason} "
            f"(code {code}{': ' + detail if detail else ''})."
        )

    def _take_rows(self, chunks: Sequence[Chunk]) -> Rows:
        rows = self._tap.take()
        if rows is not None:
            return rows
        # llama.cpp built its graph elsewhere in memory. The tap now searches by name; the cells
        # just written go first.
        for chunk in chunks:
            self._forget_after(chunk.seq, chunk.start)
        self._decode()
        rows = self._tap.take()
        if rows is None:
            raise EngineError(f"The output of layers {self._layers} was not found in llama.cpp's graph.")
        return rows

    def _forget_after(self, seq: int, length: int) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._slice.memory, seq, length, _WHOLE):
            raise EngineError(f"Sequence {seq} on layers {self._layers} cannot go back to {length} tokens.")

    def _draws(self, chunks: Sequence[Chunk]) -> list[Drawn | None]:
        draws: list[Drawn | None] = []
        end = 0
        for chunk in chunks:
            end += len(chunk.tokens)
            draws.append(None if chunk.draw is None else pick(self._logits(end - 1), chunk.draw))
        return draws

    def _logits(self, row: int) -> NDArray[np.float32]:
        """llama.cpp's own buffer, overwritten by the next batch: [n_vocab]."""
        pointer = llama_cpp.llama_get_logits_ith(self._slice.context, row)
        if not pointer:
            raise EngineError(f"llama.cpp has no logits for row {row} of the batch.")
        # numpy's own way from a pointer to an array builds a type each time: 150 us.
        values: ctypes.Array[ctypes.c_float] = ctypes.cast(pointer, self._logits_pointer).contents
        return np.frombuffer(memoryview(values), np.float32)

    def _count(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._held[chunk.seq] = self._held.get(chunk.seq, 0) + len(chunk.tokens)
            self._cells_used += len(chunk.tokens)


def _open_embedding(config: EngineConfig) -> EmbeddingTable:
    if config.embedding_path is None:
        raise ConfigError("The first slice needs the embedding table, and no path to it was given.")
    return EmbeddingTable(config.embedding_path)
