"""The matrices that a slice multiplies rows with, as its file has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shoal.core.errors import ModelFileError
from shoal.engine.row_kernels import SERVED_KINDS
from shoal.model.architectures import TOKEN_EMBEDDING
from shoal.model.gguf_file import ModelFile
from shoal.model.gguf_header import Tensor


def multiplied_matrices(slice_path: Path, *, is_last: bool) -> Iterator[Tensor]:
    """Read a slice's header. Those of a mixture's experts have a third dimension. Raises ModelFileError."""
    for tensor in ModelFile(slice_path).tensors.values():
        # Only the last slice multiplies with its embedding, which is the head there.
        if len(tensor.dims) > 1 and (is_last or tensor.name != TOKEN_EMBEDDING):
            yield tensor


def row_kernels_serve_most(slice_path: Path, *, is_last: bool) -> bool:
    """Whether row kernels, which need weights as in the file and not in a layout of llama.cpp's own, would
    compute with more than half of a slice's bytes. False for a damaged file."""
    served = other = 0
    try:
        for tensor in multiplied_matrices(slice_path, is_last=is_last):
            if tensor.kind in SERVED_KINDS:
                served += tensor.num_bytes
            else:
                other += tensor.num_bytes
    except ModelFileError:
        return False  # llama.cpp says more when it loads it
    return served > other
