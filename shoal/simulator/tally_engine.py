"""An engine that only counts: for simulations that ask how long, not what.

It checks that every chunk begins where its sequence ends, as real engines do, and draws the same
token always. The digest engine, which shows wrong answers too, takes about as long as its hashes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.core.errors import EngineError, InvariantBroken, KvExhausted
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Computed, Drawn, EngineLimits, Rows

TOKEN = 1
_STATE = b"\0" * 4


class PlainVocabulary:
    """Every token is one character, and none ends an answer: its length decides."""

    @property
    def eog_tokens(self) -> frozenset[int]:
        return frozenset()

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        return b"."


class TallyEngine:
    """One slice of nothing. cells, max_sequences, max_batch_tokens: as in EngineLimits."""

    def __init__(
        self,
        layers: LayerRange,
        num_layers: int,
        *,
        cells: int,
        max_sequences: int,
        max_batch_tokens: int,
        can_trim: bool,
    ) -> None:
        self._layers = layers
        self._is_last = layers.end == num_layers
        self._held: dict[int, int] = {}
        self._num_held = 0
        self._progress = 0
        self._rows: Rows = np.zeros((max_batch_tokens, 1), np.float32)
        self._limits = EngineLimits(
            cells=cells,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            row_width_in=1,
            row_width_out=1,
            mixes_chunks=True,
            can_trim=can_trim,
            state_bytes=0,
        )

    @property
    def layers(self) -> LayerRange:
        return self._layers

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    @property
    def progress(self) -> int:
        return self._progress

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        """See engine/interface.py."""
        total = sum(len(chunk.tokens) for chunk in chunks)
        if self._num_held + total > self._limits.cells:
            raise KvExhausted(f"need {total} cells, {self._limits.cells - self._num_held} are free")
        for chunk in chunks:
            held = self._held.get(chunk.seq, 0)
            if chunk.start != held:
                raise InvariantBroken(f"sequence {chunk.seq} holds {held} tokens, chunk at {chunk.start}")
            self._held[chunk.seq] = held + len(chunk.tokens)
        self._num_held += total
        self._progress += 1
        if self._is_last:
            return Computed.by_last_slice([None if c.draw is None else Drawn(TOKEN, None) for c in chunks])
        return Computed(self._rows[:total], (None,) * len(chunks))

    def clear(self, seq: int) -> None:
        """See engine/interface.py."""
        self._num_held -= self._held.pop(seq, 0)

    def trim(self, seq: int, length: int) -> bool:
        """See engine/interface.py."""
        if not self._limits.can_trim:
            return False
        held = self._held.get(seq, 0)
        if length < held:
            self._held[seq] = length
            self._num_held -= held - length
        return True

    def save(self, seq: int) -> bytes:
        """See engine/interface.py. How long a real state is, the link model knows."""
        return _STATE

    def restore(self, seq: int, state: bytes, length: int) -> None:
        """See engine/interface.py."""
        if self._held.get(seq) or state != _STATE:
            raise EngineError(f"sequence {seq} holds {self._held.get(seq, 0)} tokens already")
        self._held[seq] = length
        self._num_held += length

    def close(self) -> None:
        """See engine/interface.py."""
        self._held.clear()
        self._num_held = 0
