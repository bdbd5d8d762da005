"""An engine of hashes: exact, fast to make, and wrong at once when the protocol is wrong.

The hidden state of a layer at a position is a hash of that layer's own state at the previous
position, its input, and the layer's number in the whole model. So a lost, repeated, reordered or
misrouted entry changes the text, and where the model is cut does not. It knows nothing of
weights; it has switches for what real engines do badly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import EngineError, InvariantBroken, KvExhausted
from shoal.core.specs import LayerRange
from shoal.engine.adjusted_logits import adjusted
from shoal.engine.interface import Chunk, Computed, Draw, Drawn, EngineLimits, Rows
from shoal.engine.logprobs import logprobs_of

DIGEST_BYTES = 16
ROW_WIDTH = DIGEST_BYTES // 4
_ZERO = bytes(DIGEST_BYTES)


def _hash(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


class DigestEngine:
    """One slice of an imaginary model.

    can_trim: False behaves like recurrent memory. fails: asked before each batch; True makes it
    fail as a real decode may. shape_sensitive: the text depends on the chunk lengths a sequence
    was computed in, as low bits of real kernels do.
    """

    def __init__(
        self,
        layers: LayerRange,
        num_layers: int,
        *,
        n_vocab: int,
        cells: int = 1 << 20,
        max_sequences: int = 64,
        max_batch_tokens: int = 128,
        can_trim: bool = True,
        mixes_chunks: bool = True,
        shape_sensitive: bool = False,
        fails: Callable[[Sequence[Chunk]], bool] | None = None,
    ) -> None:
        self._layers = layers
        self._is_first = layers.start == 0
        self._is_last = layers.end == num_layers
        self._n_vocab = n_vocab
        self._shape_sensitive = shape_sensitive
        self._fails = fails
        self._progress = 0
        # One item a position: the states of all layers of this slice, joined.
        self._held: dict[int, list[bytes]] = {}
        self._limits = EngineLimits(
            cells=cells,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            row_width_in=ROW_WIDTH,
            row_width_out=ROW_WIDTH,
            mixes_chunks=mixes_chunks,
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

    @property
    def cells_used(self) -> int:
        return sum(len(states) for states in self._held.values())

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        """See engine/interface.py."""
        total = sum(len(chunk.tokens) for chunk in chunks)
        self._check(chunks, rows, total)
        if self._fails is not None and self._fails(chunks):
            for chunk in chunks:
                self.clear(chunk.seq)
            raise EngineError("the digest engine was told to fail this batch")
        outputs: list[bytes] = []
        draws: list[Drawn | None] = []
        for chunk in chunks:
            offset = len(outputs)
            outputs.extend(self._run_chunk(chunk, rows, offset))
            draws.append(None if chunk.draw is None else self._draw(outputs[-1], chunk.draw))
        if self._is_last:
            return Computed.by_last_slice(draws)
        out = np.frombuffer(b"".join(outputs), np.float32).reshape(total, ROW_WIDTH)
        return Computed(out, (None,) * len(chunks))

    def clear(self, seq: int) -> None:
        """See engine/interface.py."""
        self._held.pop(seq, None)

    def trim(self, seq: int, length: int) -> bool:
        """See engine/interface.py."""
        if not self._limits.can_trim:
            return False
        del self._held.get(seq, [])[length:]
        return True

    def save(self, seq: int) -> bytes:
        """See engine/interface.py."""
        return b"".join(self._held.get(seq, ()))

    def restore(self, seq: int, state: bytes, length: int) -> None:
        """See engine/interface.py."""
        width = self._layers.num_layers * DIGEST_BYTES
        if self._held.get(seq) or len(state) != length * width:
            raise EngineError(f"a state of {len(state)} bytes does not fit {length} tokens of {width} bytes")
        if self.cells_used + length > self._limits.cells:
            raise KvExhausted(f"need {length} cells, {self._limits.cells - self.cells_used} are free")
        self._held[seq] = [state[position * width : (position + 1) * width] for position in range(length)]

    def close(self) -> None:
        """See engine/interface.py."""
        self._held.clear()

    def _check(self, chunks: Sequence[Chunk], rows: Rows | None, total: int) -> None:
        if total > self._limits.max_batch_tokens:
            raise EngineError(f"batch of {total} tokens, {self._limits.max_batch_tokens} fit")
        if self.cells_used + total > self._limits.cells:
            raise KvExhausted(f"need {total} cells, {self._limits.cells - self.cells_used} are free")
        if self._is_first != (rows is None):
            raise InvariantBroken("the first slice takes tokens, every other takes rows")
        if rows is not None and rows.shape != (total, ROW_WIDTH):
            raise InvariantBroken(f"rows {rows.shape} behind {total} tokens")
        for chunk in chunks:
            held = len(self._held.get(chunk.seq, ()))
            if chunk.start != held:
                raise InvariantBroken(f"sequence {chunk.seq} holds {held} tokens, chunk at {chunk.start}")

    def _run_chunk(self, chunk: Chunk, rows: Rows | None, offset: int) -> list[bytes]:
        states = self._held.setdefault(chunk.seq, [])
        shape = struct.pack("<i", len(chunk.tokens)) if self._shape_sensitive else b""
        outputs = []
        for index, token in enumerate(chunk.tokens):
            if rows is None:
                value = _hash(b"embed", struct.pack("<Qqq", chunk.salt, token, chunk.start + index))
            else:
                value = rows[offset + index].tobytes()
            previous = states[-1] if states else _ZERO * self._layers.num_layers
            current = []
            for layer in range(self._layers.num_layers):
                own = previous[layer * DIGEST_BYTES : (layer + 1) * DIGEST_BYTES]
                number = struct.pack("<i", self._layers.start + layer)
                value = _hash(b"layer", number, shape, own, value)
                current.append(value)
                self._progress += 1
            states.append(b"".join(current))
            outputs.append(value)
        return outputs

    def _draw(self, hidden: bytes, draw: Draw) -> Drawn:
        """Greedy depends on the hidden state alone, sampling on seed and position too. Logits, of
        which the token is the highest, exist only where something is asked of them."""
        params = draw.params
        key = struct.pack("<Qq", params.seed, draw.position) if params.temperature > 0 else b""
        number = int.from_bytes(_hash(b"draw", hidden, key)[:8], "little")
        token = number % self._n_vocab
        if not params.logit_bias and not params.has_penalties and params.top_logprobs is None:
            return Drawn(token, None)
        logits = _logits(number, token, self._n_vocab)
        token = int(adjusted(logits, draw).argmax())
        num_top = params.top_logprobs
        return Drawn(token, None if num_top is None else logprobs_of(logits, token, num_top))


def _logits(number: int, highest: int, n_vocab: int) -> NDArray[np.float32]:
    """Numbers from -4 to 4 that depend on `number`, and 5 for one token: mixed as in splitmix64."""
    mixed = np.arange(n_vocab, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    logits = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(8 / 2**24) - np.float32(4)
    logits[highest] = 5
    return logits
