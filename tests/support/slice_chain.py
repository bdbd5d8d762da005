"""A model's slices, each in an engine, called one after the other: a pipeline without processes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from shoal.core.config import EngineConfig
from shoal.core.specs import LayerRange
from shoal.engine.interface import Chunk, Computed, Rows
from shoal.engine.llama_engine import LlamaEngine
from shoal.model.slicing import cut_embedding, cut_slice


def even_cuts(num_layers: int, num_slices: int) -> list[LayerRange]:
    """`num_slices` ranges that cover the model, as equal as they can be."""
    bounds = [num_layers * index // num_slices for index in range(num_slices + 1)]
    return [LayerRange(start, end) for start, end in itertools.pairwise(bounds)]


class SliceChain:
    """Cuts the model into `folder` and loads every slice."""

    def __init__(
        self,
        model_path: Path,
        slices: Sequence[LayerRange],
        folder: Path,
        *,
        cells: int,
        max_sequences: int = 1,
        max_batch_tokens: int = 128,
        invariant: bool = False,
        threads: int = 1,
        engine: type[LlamaEngine] = LlamaEngine,
    ) -> None:
        embedding_path = cut_embedding(model_path, folder / "embedding.gguf")
        config = EngineConfig(
            kind="llama",
            slice_path=None,
            embedding_path=embedding_path,
            n_ctx=cells,
            cells=cells,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            invariant=invariant,
            threads=threads,
        )
        self.engines: list[LlamaEngine] = []
        for layers in slices:
            path = folder / f"{layers.start}-{layers.end}.gguf"
            if not path.exists():
                cut_slice(model_path, layers, path)
            self.engines.append(engine(replace(config, slice_path=path), layers, slices[-1].end))

    def __enter__(self) -> SliceChain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in self.engines:
            engine.close()

    @property
    def last(self) -> LlamaEngine:
        return self.engines[-1]

    def compute(self, chunks: Sequence[Chunk]) -> Computed:
        """Run one batch through all slices. Draws belong to the last slice only."""
        rows: Rows | None = None
        undrawn = [replace(chunk, draw=None) for chunk in chunks]
        for engine in self.engines[:-1]:
            rows = engine.compute(undrawn, rows).rows
        return self.last.compute(chunks, rows)
