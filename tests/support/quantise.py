"""A model file in another quantisation, by llama.cpp's own quantiser."""

from __future__ import annotations

from pathlib import Path

from shoal.engine.llama_library import llama_cpp
from shoal.engine.llama_runtime import llama_runtime


def quantised(source: Path, target: Path, file_type: int) -> Path:
    """Write `target` and return it. file_type: one of llama.cpp's LLAMA_FTYPE_*; rows that are not
    whole blocks of 256 get a smaller kind."""
    llama_runtime()  # its log is quiet
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.nthread = 1
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0
    return target
