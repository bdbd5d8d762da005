"""Token rows, looked up in the mapped embedding table: what stage 0 feeds its slice with.

Owns the table of one model (a whole model file, or the one that slicing.cut_embedding wrote). Reads
and dequantises only the rows asked for. The values are bit-identical to llama.cpp's own lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from shoal.core.errors import InvariantBroken, UnsupportedModel
from shoal.model.architectures import TOKEN_EMBEDDING, rule_for
from shoal.model.gguf_file import ModelFile


class EmbeddingTable:
    """Rows of one model's token embedding, ready for its first layer."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError or UnsupportedModel."""
        model = ModelFile(path)
        rule = rule_for(model)
        table = model.tensor(TOKEN_EMBEDDING)
        self.n_embd = table.dims[0]
        self._kind = table.kind
        self._rows = model.tensor_rows(table)
        self.n_vocab = len(self._rows)
        # llama.cpp scales in float32 too: the factor itself is rounded first.
        self._factor = np.float32(rule.embedding_factor(self.n_embd))
        self._check_dims(model, rule.name, table.dims)

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """`[num_tokens, n_embd]`, a new array. Raises InvariantBroken for a token out of range:
        tokens are checked where they enter the system."""
        index = np.asarray(tokens, dtype=np.int64)  # [num_tokens]
        if index.size and not (index.min() >= 0 and index.max() < self.n_vocab):
            raise InvariantBroken(
                f"A token id is outside the vocabulary of {self.n_vocab}: {index.min()} to {index.max()}."
            )
        packed = self._rows[index]  # [num_tokens, row_bytes]
        values: NDArray[np.float32] = dequantize(packed, self._kind) if index.size else self._no_rows()
        return values if self._factor == 1 else values * self._factor

    def _no_rows(self) -> NDArray[np.float32]:
        return np.empty((0, self.n_embd), np.float32)

    def _check_dims(self, model: ModelFile, architecture: str, dims: tuple[int, ...]) -> None:
        n_embd = model.integer(f"{architecture}.embedding_length")
        if len(dims) != 2 or dims[0] != n_embd:
            raise model.error(f"{TOKEN_EMBEDDING} has the dimensions {list(dims)}, not [{n_embd}, n_vocab]")
        try:
            dequantize(self._rows[:1], self._kind)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{model.path} stores its token embedding as {GGMLQuantizationType(self._kind).name}, "
                "which cannot be read here yet.",
                next_step="Use a file with another quantisation of token_embd.weight.",
            ) from error
