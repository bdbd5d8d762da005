"""llama.cpp's parameter structures, filled in by name and checked.

ctypes accepts a misspelt or retired field silently: the value would be kept on the Python object
and never reach llama.cpp. Every setting goes through `set_fields`, which refuses unknown names.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llama_cpp import llama_cpp

from shoal.core.config import EngineConfig
from shoal.core.errors import InvariantBroken

_ALL_LAYERS = -1


def set_fields(params: ctypes.Structure, **values: Any) -> None:
    """Set fields of a llama.cpp structure. Raises InvariantBroken on a name that it lacks."""
    known = {field[0] for field in params._fields_}
    unknown = sorted(set(values) - known)
    if unknown:
        raise InvariantBroken(
            f"{type(params).__name__} of the installed llama.cpp has no field {', '.join(unknown)}.",
            next_step="Install the llama-cpp-python version that pyproject.toml pins.",
        )
    for name, value in values.items():
        setattr(params, name, value)


def vocab_only_params() -> ctypes.Structure:
    """Model parameters that load the vocabulary and no weights."""
    params: ctypes.Structure = llama_cpp.llama_model_default_params()
    set_fields(params, vocab_only=True, load_mode=llama_cpp.LLAMA_LOAD_MODE_NONE)
    return params


def slice_model_params(config: EngineConfig) -> ctypes.Structure:
    """Model parameters for a slice.

    load_mode NONE reads the weights into llama.cpp's own buffers. As by default they would be
    mapped, and where the CPU backend repacks them for speed both copies would be resident.
    """
    params: ctypes.Structure = llama_cpp.llama_model_default_params()
    set_fields(
        params,
        n_gpu_layers=config.gpu_layers if config.gpu_layers >= 0 else _ALL_LAYERS,
        load_mode=llama_cpp.LLAMA_LOAD_MODE_NONE,
        use_extra_bufts=True,
    )
    return params


def slice_context_params(config: EngineConfig, cb_eval: Any) -> ctypes.Structure:
    """Context parameters for a slice. `cb_eval` must stay referenced as long as the context.

    The unified cache shares its cells among all sequences; a physical batch holds any batch, so
    that the callback sees each batch as one graph in batch order. swa_full keeps whole sequences
    in sliding-window layers too: cells then count the same in every layer, and a tail can be
    trimmed off.
    """
    params: ctypes.Structure = llama_cpp.llama_context_default_params()
    set_fields(
        params,
        n_ctx=config.cells,
        n_batch=config.max_batch_tokens,
        n_ubatch=config.max_batch_tokens,
        n_seq_max=config.max_sequences,
        n_threads=config.threads,
        n_threads_batch=config.threads,
        kv_unified=True,
        swa_full=True,
        flash_attn_type=llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
        no_perf=True,
        cb_eval=cb_eval,
    )
    return params
