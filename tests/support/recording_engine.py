"""A llama engine that remembers the bits it drew every token from."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from shoal.core.config import EngineConfig
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Computed, Rows
from shoal.engine.interface import Drawn as Picked
from shoal.engine.llama_engine import LlamaEngine

Drawn = dict[tuple[int, int], set[bytes]]
"""By (seed, position): digests of the logits that a token was drawn from; a replay may add one."""


class RecordingEngine(LlamaEngine):
    """Give each request a seed of its own: it is the name under which its logits are kept.

    most_sequences: of one batch so far.
    """

    def __init__(self, config: EngineConfig, layers: LayerRange, num_layers: int) -> None:
        super().__init__(config, layers, num_layers)
        self.drawn: Drawn = {}
        self.most_sequences = 0

    def compute(self, chunks: Sequence[Chunk], rows: Rows | None) -> Computed:
        self.most_sequences = max(self.most_sequences, len(chunks))
        return super().compute(chunks, rows)

    def _draws(self, chunks: Sequence[Chunk]) -> list[Picked | None]:
        end = 0
        for chunk in chunks:
            end += len(chunk.tokens)
            if chunk.draw is not None:
                digest = blake2b(self._logits(end - 1).tobytes(), digest_size=16).digest()
                self.drawn.setdefault((chunk.draw.params.seed, chunk.draw.position), set()).add(digest)
        return super()._draws(chunks)
