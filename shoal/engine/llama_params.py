"""llama.cpp's parameter structures, filled in by name and checked.

ctypes accepts a misspelt or retired field silently: the value would be kept on the Python object
and never reach llama.cpp. Every setting goes through `set_fields`, which refuses unknown names.
"""

from __future__ import annotations

import ctypes
from typing import Any

from shoal.core.config import EngineConfig
from shoal.core.errors import InvariantBroken
from shoal.core.invariant_mode import TILED_ROWS, cells_of_a_sequence
from shoal.engine.llama_library import llama_cpp
from shoal.engine.node_watch import NodeWatch

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


def slice_model_params(config: EngineConfig, *, repack: bool) -> ctypes.Structure:
    """Model parameters for a slice. repack: what `config.repack` comes to for it.

    load_mode NONE reads the weights into llama.cpp's own buffers. As by default they would be
    mapped, and where the CPU backend repacks them for speed both copies would be resident.
    """
    params: ctypes.Structure = llama_cpp.llama_model_default_params()
    gpu_layers = 0 if config.invariant else config.gpu_layers
    set_fields(
        params,
        n_gpu_layers=gpu_layers if gpu_layers >= 0 else _ALL_LAYERS,
        load_mode=llama_cpp.LLAMA_LOAD_MODE_NONE,
        use_extra_bufts=repack,
    )
    return params


def slice_context_params(config: EngineConfig, watch: NodeWatch) -> ctypes.Structure:
    """Context parameters for a slice. `watch` must stay referenced as long as the context.

    A physical batch holds any batch, so that the callback sees each batch as one graph in batch
    order. swa_full keeps whole sequences in sliding-window layers too: cells then count the same
    in every layer, and a tail can be trimmed off.
    """
    params: ctypes.Structure = llama_cpp.llama_context_default_params()
    set_fields(
        params,
        n_seq_max=config.max_sequences,
        n_threads=config.threads,
        n_threads_batch=config.threads,
        swa_full=True,
        no_perf=True,
        cb_eval=watch.callback,
        cb_eval_user_data=watch.user_data,
    )
    if config.invariant:
        _set_invariant(params, config)
    else:
        _set_default(params, config)
    return params


def _set_default(params: ctypes.Structure, config: EngineConfig) -> None:
    """The unified cache shares its cells among all sequences."""
    set_fields(
        params,
        n_ctx=config.cells,
        n_batch=config.max_batch_tokens,
        n_ubatch=config.max_batch_tokens,
        kv_unified=True,
        flash_attn_type=llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    )


def _set_invariant(params: ctypes.Structure, config: EngineConfig) -> None:
    """A cache for each sequence, and what engine/invariance.py says of kernels.

    A batch has room for repetitions (LlamaBatch.pad), and for a token of each sequence: with less,
    llama.cpp aborts where it plans its graphs.
    """
    num_batch_rows = max(config.max_batch_tokens, config.max_sequences, TILED_ROWS)
    set_fields(
        params,
        n_ctx=cells_of_a_sequence(config.n_ctx) * config.max_sequences,
        n_batch=num_batch_rows,
        n_ubatch=num_batch_rows,
        kv_unified=False,
        flash_attn_type=llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        type_k=llama_cpp.GGML_TYPE_Q8_0,
        type_v=llama_cpp.GGML_TYPE_Q8_0,
        offload_kqv=False,
        op_offload=False,
    )
