"""What a worker asks of an engine. Two stand behind it: llama.cpp and the digest engine.

An engine owns the model slice and the caches of its sequences; it knows nothing of sessions,
steps or sockets. It is used from one thread at a time, except `progress`, which any thread
may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.core.sequence import Logprobs, SamplingParams
from shoal.core.specs import LayerRange

Rows = NDArray[np.float32]
"""Boundary rows `[num_tokens, row_width]`, C-contiguous float32."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine can hold and take; admission uses the smallest of the pipeline.

    cells: tokens that fit the cache, over all sequences. max_batch_tokens: tokens of one
    `compute` call. mixes_chunks: whether one batch may hold several multi-token chunks (hybrid
    and recurrent models may not: SLICES section 3). can_trim: whether `trim` can cut a tail off.
    state_bytes: what the caches take.
    """

    cells: int
    max_sequences: int
    max_batch_tokens: int
    row_width_in: int
    row_width_out: int
    mixes_chunks: bool
    can_trim: bool
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Draw:
    """What picking one token depends on, beside the logits.

    position: of the token to be drawn. generated: the tokens of this answer so far (not the
    prompt); it may be empty where `params` has no penalties.
    """

    params: SamplingParams
    position: int
    generated: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence. `start`: position of the first, which must be the
    number of tokens that the sequence holds. `draw`: pick a token after the chunk's last row
    (last slice only). `salt`: makes equal prompts of two requests differ in the digest engine;
    others ignore it. `num_prompt`: how many of the tokens, the first ones, belong to the prompt;
    invariant mode computes these by other kernels."""

    seq: int
    start: int
    tokens: Sequence[int]
    draw: Draw | None = None
    salt: int = 0
    num_prompt: int = 0


class Drawn(NamedTuple):
    """A token that was picked; with its logprobs where the draw asked for them."""

    token: int
    logprobs: Logprobs | None


@dataclass(frozen=True, slots=True)
class Computed:
    """rows: `[num_tokens, row_width_out]` in chunk order, valid for as long as it is referenced;
    None from the last slice. drawn: one entry a chunk, the token picked or None. logprobs: those
    of each token that was drawn with them; empty where nothing was."""

    rows: Rows | None
    drawn: tuple[int | None, ...]
    logprobs: tuple[Logprobs | None, ...] = ()

    @classmethod
    def by_last_slice(cls, draws: Sequence[Drawn | None]) -> Computed:
        """What the last slice has: one entry a chunk."""
        tokens = tuple(None if drawn is None else drawn.token for drawn in draws)
        return cls(None, tokens, tuple(None if drawn is None else drawn.logprobs for drawn in draws))

    def drawn_behind(self, chunk: int) -> Drawn | None:
        """What was picked behind one chunk of the batch."""
        token = self.drawn[chunk]
        return None if token is None else Drawn(token, self.logprobs[chunk] if self.logprobs else None)


class Engine(Protocol):
    """One slice, loaded."""

    @property
    def layers(self) -> LayerRange: ...

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def progress(self) -> int:
        """A counter that moves while a batch is being computed. Readable from any thread."""
        ...

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        """Run the slice over a batch and append to the sequences' caches.

        rows: `[num_tokens, row_width_in]` in chunk order; None where this is the first slice,
        which embeds the chunks' tokens itself.
        Raises EngineError when nothing usable was computed: the caches of the sequences in the
        batch are then undefined and must be cleared. Raises KvExhausted before anything is
        written when the batch cannot fit.
        """
        ...

    def clear(self, seq: int) -> None:
        """Forget everything held for `seq`."""
        ...

    def trim(self, seq: int, length: int) -> bool:
        """Keep the first `length` tokens of `seq`. False when this memory cannot: `seq` is then
        unchanged and the caller clears it."""
        ...

    def save(self, seq: int) -> bytes:
        """Everything held for `seq`, for another engine of the same kind and slice. Raises EngineError."""
        ...

    def restore(self, seq: int, state: bytes, length: int) -> None:
        """Hold what `save` gave: `length` tokens. `seq` must hold nothing. Raises EngineError, with
        `seq` empty, where the state does not fit, and KvExhausted where there is no room."""
        ...

    def close(self) -> None:
        """Free the model and its caches. Idempotent."""
        ...
