"""In which layout a slice's weights are computed with fastest: llama.cpp's for the CPU, or the file's.

llama.cpp's own layouts (repacked weights) suit its own kernels. Shoal's row kernels need the file's.
"""

from __future__ import annotations

from pathlib import Path

from shoal.core.errors import ModelFileError
from shoal.engine.row_kernels import SERVED_KINDS
from shoal.model.architectures import TOKEN_EMBEDDING
from shoal.model.gguf_file import ModelFile


def row_kernels_serve_most(slice_path: Path, *, is_last: bool) -> bool:
    """Whether row kernels would compute with more than half of a slice's bytes. False for a damaged file."""
    served = other = 0
    try:
        tensors = ModelFile(slice_path).tensors
    except ModelFileError:
        return False  # llama.cpp says more when it loads it
    for tensor in tensors.values():
        # Only the last slice multiplies with its embedding, which is the head there.
        if len(tensor.dims) < 2 or (tensor.name == TOKEN_EMBEDDING and not is_last):
            continue
        if tensor.kind in SERVED_KINDS:
            served += tensor.num_bytes
        else:
            other += tensor.num_bytes
    return served > other
