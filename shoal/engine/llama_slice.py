"""Loading: a slice file becomes a llama.cpp model and a context with its caches.

Owns both pointers, the checks that the file is the slice that was asked for, and the wording of
what can go wrong while loading.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import weakref
from pathlib import Path
from typing import Any, Final

import psutil

from shoal.core.config import EngineConfig
from shoal.core.errors import ConfigError, InsufficientMemory, ModelFileError
from shoal.core.invariant_mode import Q8_0_PER_F16
from shoal.core.specs import LayerRange
from shoal.engine.hidden_tap import HiddenTap
from shoal.engine.invariance import RowRules, matrix_kinds, row_rules, switch_tiling_off
from shoal.engine.llama_library import llama_cpp
from shoal.engine.llama_params import slice_context_params, slice_model_params
from shoal.engine.llama_runtime import llama_runtime
from shoal.engine.matrices import row_kernels_serve_most
from shoal.model.architectures import RULES, ArchitectureRule

_LOG = logging.getLogger(__name__)
_KV_BYTES_PER_VALUE: Final = 2  # F16, llama.cpp's default for keys and values
_OUT_OF_MEMORY: Final = ("unable to allocate", "failed to allocate", "out of memory", "cannot allocate")


class LlamaSlice:
    """One slice, loaded. `model` and `context` are llama.cpp's pointers, valid until `close`.

    row_rules: what batches it must be given in invariant mode; None in default mode.
    """

    def __init__(self, config: EngineConfig, layers: LayerRange, *, is_last: bool) -> None:
        """Raises ModelFileError, InsufficientMemory or ConfigError, naming file and layers."""
        if config.slice_path is None or not config.slice_path.is_file():
            raise ModelFileError(
                f"The slice of layers {layers} is missing: {config.slice_path} is not a file.",
                next_step="Cut the model again.",
            )
        self.path: Path = config.slice_path
        self.layers = layers
        self._config = config
        self.row_rules = self._choose_kernels(is_last=is_last)
        self._repack = self._chooses_repacked(is_last=is_last)
        self.model = self._load_model()
        self._finalizer: weakref.finalize[..., LlamaSlice] = weakref.finalize(
            self, llama_cpp.llama_model_free, self.model
        )
        self.rule = self._check_model()
        self.row_width_in: int = llama_cpp.llama_model_n_embd_inp(self.model)
        self.row_width_out: int = llama_cpp.llama_model_n_embd(self.model)
        self.tap = HiddenTap(self._awaited_nodes(), self.row_width_out, takes_rows=not is_last)
        self.context = self._create_context()
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _free, self.context, self.model, self.tap)
        self.memory: Any = llama_cpp.llama_get_memory(self.context)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    @property
    def state_bytes(self) -> int:
        """What the caches take, all cells."""
        cells: int = llama_cpp.llama_n_ctx(self.context)
        return cells * self._kv_bytes_per_token()

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Free model and caches. Idempotent."""
        self._finalizer()

    def _choose_kernels(self, *, is_last: bool) -> RowRules | None:
        """Before the first product in this process."""
        runtime = llama_runtime()
        if not self._config.invariant:
            runtime.may_have_tiled = True
            return None
        runtime.keep_tiled_rows_tiled()
        kinds = matrix_kinds(self.path, is_last=is_last)
        if kinds.tiles_experts:
            switch_tiling_off(runtime)
        else:
            runtime.may_have_tiled = True
        return row_rules(kinds)

    def _chooses_repacked(self, *, is_last: bool) -> bool:
        if self._config.invariant:
            return False
        if self._config.repack is not None:
            return self._config.repack
        has_row_kernels = llama_runtime().row_kernels is not None
        uses_them = has_row_kernels and row_kernels_serve_most(self.path, is_last=is_last)
        whose = "Shoal's row kernels and llama.cpp" if uses_them else "llama.cpp alone"
        _LOG.info("layers %s are computed by %s", self.layers, whose)
        return not uses_them

    def _load_model(self) -> Any:
        runtime = llama_runtime()
        runtime.forget_errors()
        model = llama_cpp.llama_model_load_from_file(
            str(self.path).encode(), slice_model_params(self._config, repack=self._repack)
        )
        if model is None:
            cause = runtime.last_errors() or "no reason given"
            self._refuse_if_out_of_memory(cause, self.path.stat().st_size)
            raise ModelFileError(
                f"{self.path} (layers {self.layers}): llama.cpp cannot load it: {cause}.",
                next_step="Cut the model again; if that does not help, fetch the model again.",
            )
        return model

    def _create_context(self) -> Any:
        runtime = llama_runtime()
        runtime.forget_errors()
        params = slice_context_params(self._config, self.tap.watch)
        context = llama_cpp.llama_init_from_model(self.model, params)
        if context is None:
            cause = runtime.last_errors() or "no reason given"
            self._refuse_if_out_of_memory(cause, self._config.cells * self._kv_bytes_per_token())
            raise ConfigError(
                f"{self.path} (layers {self.layers}): llama.cpp cannot make a cache of "
                f"{self._config.cells} cells for {self._config.max_sequences} sequences: {cause}.",
                next_step="Use a smaller --ctx.",
            )
        return context

    def _refuse_if_out_of_memory(self, cause: str, need_bytes: int) -> None:
        if any(phrase in cause.lower() for phrase in _OUT_OF_MEMORY):
            raise InsufficientMemory(
                node=platform.node(),
                layers=str(self.layers),
                need_bytes=need_bytes,
                usable_bytes=psutil.virtual_memory().available,
            )

    def _check_model(self) -> ArchitectureRule:
        """That the file holds these layers, and was cut by a rule that is known here."""
        num_layers = llama_cpp.llama_model_n_layer(self.model)
        start = self._metadata("shoal.layer_start")
        if num_layers != self.layers.num_layers or start != str(self.layers.start):
            raise ModelFileError(
                f"{self.path} is not the slice of layers {self.layers}: "
                f"it has {num_layers} layers, starting at {start}.",
                next_step="Cut the model again.",
            )
        architecture = self._metadata("general.architecture") or ""
        rule = RULES.get(architecture)
        if rule is None:
            raise ModelFileError(
                f"{self.path} (layers {self.layers}) has the architecture {architecture!r}, "
                "which this version cannot run in slices.",
                next_step="Use the same version of Shoal on every machine.",
            )
        return rule

    def _awaited_nodes(self) -> list[str]:
        outputs = [self.rule.boundary_tensor(layer + 1) for layer in range(self.layers.num_layers)]
        # On a GPU each awaited node costs a synchronisation and the whole graph's replay.
        is_offloaded = llama_cpp.llama_supports_gpu_offload() and self._config.gpu_layers != 0
        return outputs[-1:] if is_offloaded else outputs

    def _kv_bytes_per_token(self) -> int:
        n_embd = llama_cpp.llama_model_n_embd(self.model)
        n_head = llama_cpp.llama_model_n_head(self.model)
        key = int(self._metadata(f"{self.rule.name}.attention.key_length") or n_embd // n_head)
        value = int(self._metadata(f"{self.rule.name}.attention.value_length") or n_embd // n_head)
        per_layer = llama_cpp.llama_model_n_head_kv(self.model) * (key + value) * _KV_BYTES_PER_VALUE
        num_bytes = self.layers.num_layers * int(per_layer)
        return int(num_bytes * Q8_0_PER_F16) if self._config.invariant else num_bytes

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_model_meta_val_str(self.model, key.encode(), buffer, len(buffer))
        return None if length < 0 else buffer.value.decode("utf-8", "replace")


def _free(context: Any, model: Any, _tap: HiddenTap) -> None:
    # `_tap` is a parameter so that its callback outlives the context that points at it.
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
