"""What a GGUF file asks of machines, read from its tensors and metadata.

Weights are the file's own bytes, so every mixed quantisation is exact. Caches follow the metadata that
llama.cpp writes. It reads more architectures than Shoal can cut, because an estimate of a model
that cannot be cut is still worth having; those whose caches the metadata does not tell are refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.catalogue.mixers import OPS, CacheShape
from shoal.core.errors import ModelFileError, UnsupportedModel
from shoal.model.gguf_file import ModelFile
from shoal.model.gguf_header import Tensor
from shoal.planner.demand import CACHE_VALUE_BYTES, STATE_VALUE_BYTES
from shoal.planner.model_demand import LayerDemand, ModelDemand

EXPERT_MARK: Final = "_exps"
TABLES: Final = ("token_embd.weight", "per_layer_token_embd.weight")
HEAD: Final = "output.weight"

# Every so many layers one sees the whole context, where the file has no pattern of its own.
WINDOW_PERIODS: Final[Mapping[str, int]] = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "olmo2": 4}

NOT_TOLD: Final[Mapping[str, str]] = {
    "deepseek4": "its compressed caches are not in the metadata; use --model deepseek-v4-flash or -pro",
    "glm5-next": "its four streams and caches are not in the metadata",
    "gemma3n": "its shared caches are not in the metadata",
    "rwkv7": "the size of its state is not read here",
}


def read_gguf_demand(path: Path, *, cache_value_bytes: float = CACHE_VALUE_BYTES) -> ModelDemand:
    """Raises ModelFileError where the file is damaged, UnsupportedModel where its caches are not told."""
    model = ModelFile(path)
    architecture = model.text("general.architecture")
    _refuse(model, architecture)
    num_layers = model.integer(f"{architecture}.block_count")
    num_layers -= model.integer(f"{architecture}.nextn_predict_layers", 0)
    blocks, rest = _sorted_tensors(model, num_layers)
    caches = _Caches(model, architecture, num_layers)
    experts = model.integer(f"{architecture}.expert_count", 0)
    used = model.integer_per_layer(f"{architecture}.expert_used_count", num_layers, 0)
    layers = tuple(
        blocks[index].demand(caches.of(index, blocks[index]), experts, used[index], cache_value_bytes)
        for index in range(num_layers)
    )
    return _whole(model, architecture, layers, rest)


def _refuse(model: ModelFile, architecture: str) -> None:
    if model.integer("split.count", 0) > 1 or "shoal.layer_start" in model.fields:
        raise UnsupportedModel(
            f"{model.path} holds a part of a model.", next_step="Give the file with the whole model."
        )
    if architecture in NOT_TOLD:
        raise UnsupportedModel(
            f"{model.path} has the architecture {architecture!r}: {NOT_TOLD[architecture]}.",
            next_step="Name a model of the catalogue instead.",
        )


@dataclass(slots=True)
class _Block:
    """The tensors of one layer, summed. suffixes: their names behind `blk.N.`."""

    trunk_bytes: int = 0
    trunk_parameters: int = 0
    expert_bytes: int = 0
    expert_parameters: int = 0
    suffixes: set[str] = field(default_factory=set)
    expert_row_values: int = 0

    def add(self, suffix: str, tensor: Tensor) -> None:
        self.suffixes.add(suffix)
        if EXPERT_MARK in suffix:
            self.expert_bytes += tensor.num_bytes
            self.expert_parameters += math.prod(tensor.dims)
            if "ffn_up" in suffix or "ffn_gate_up" in suffix:
                self.expert_row_values = tensor.dims[0]
        else:
            self.trunk_bytes += tensor.num_bytes
            self.trunk_parameters += math.prod(tensor.dims)

    def demand(self, cache: _LayerCache, experts: int, used: int, cache_value_bytes: float) -> LayerDemand:
        has_experts = self.expert_bytes > 0 and experts > 0
        shape = cache.shape
        return LayerDemand(
            trunk_bytes=self.trunk_bytes,
            trunk_parameters=self.trunk_parameters,
            expert_bytes=self.expert_bytes // experts if has_experts else 0,
            expert_parameters=self.expert_parameters // experts if has_experts else 0,
            num_experts=experts if has_experts else 0,
            experts_per_token=used if has_experts else 0,
            expert_row_values=self.expert_row_values,
            kv_bytes_per_token=shape.per_token * cache_value_bytes,
            kv_window_tokens=shape.window_tokens,
            kv_read_tokens=shape.read_tokens,
            index_bytes_per_token=shape.index_per_token * cache_value_bytes,
            state_bytes=shape.state * STATE_VALUE_BYTES,
            attention_ops_per_cached_token=cache.ops_per_cached_token,
        )


@dataclass(frozen=True, slots=True)
class _LayerCache:
    shape: CacheShape
    ops_per_cached_token: float


class _Caches:
    """What each layer keeps of a sequence, by the file's metadata."""

    def __init__(self, model: ModelFile, architecture: str, num_layers: int) -> None:
        self._model = model
        self._prefix = architecture
        attention = f"{architecture}.attention"
        self._heads = model.integer_per_layer(f"{attention}.head_count", num_layers)
        has_kv = f"{attention}.head_count_kv" in model.fields
        self._kv_heads = (
            model.integer_per_layer(f"{attention}.head_count_kv", num_layers) if has_kv else self._heads
        )
        n_embd = model.integer(f"{architecture}.embedding_length")
        width = n_embd // max(1, max(self._heads))
        self._key_width = model.integer(f"{attention}.key_length", width)
        self._value_width = model.integer(f"{attention}.value_length", width)
        self._windows = self._read_windows(num_layers)

    def of(self, layer: int, block: _Block) -> _LayerCache:
        if any(suffix.startswith("ssm_") for suffix in block.suffixes):
            return _LayerCache(CacheShape(state=self._state_values(layer)), 0.0)
        latent = self._model.integer(f"{self._prefix}.attention.kv_lora_rank", 0)
        if latent:
            return self._latent(layer, latent)
        heads, kv_heads = self._heads[layer], self._kv_heads[layer]
        per_token = kv_heads * (self._key_width + self._value_width)
        ops = OPS * heads * (self._key_width + self._value_width)
        return _LayerCache(CacheShape(per_token=per_token, window_tokens=self._windows[layer]), ops)

    def _latent(self, layer: int, latent: int) -> _LayerCache:
        rope = self._model.integer(f"{self._prefix}.rope.dimension_count")
        index = self._model.integer(f"{self._prefix}.attention.indexer.key_length", 0)
        top = self._model.integer(f"{self._prefix}.attention.indexer.top_k", 0)
        shape = CacheShape(per_token=latent + rope, read_tokens=top or None, index_per_token=index)
        return _LayerCache(shape, OPS * self._heads[layer] * (2 * latent + rope))

    def _state_values(self, layer: int) -> int:
        kernel = self._model.integer(f"{self._prefix}.ssm.conv_kernel")
        kda = self._model.integer(f"{self._prefix}.kda.head_dim", 0)
        if kda:
            inner = kda * self._heads[layer]
            return inner * kda + 3 * inner * (kernel - 1)
        inner = self._model.integer(f"{self._prefix}.ssm.inner_size")
        state = self._model.integer(f"{self._prefix}.ssm.state_size")
        groups = self._model.integer(f"{self._prefix}.ssm.group_count", 0)
        return inner * state + (inner + 2 * groups * state) * (kernel - 1)

    def _read_windows(self, num_layers: int) -> tuple[int | None, ...]:
        window = self._model.integer(f"{self._prefix}.attention.sliding_window", 0)
        key = f"{self._prefix}.attention.sliding_window_pattern"
        if window == 0:
            return (None,) * num_layers
        array = self._model.numbers(key)
        if array is not None:
            pattern = [bool(entry) for entry in array.tolist()]
            if len(pattern) < num_layers:
                raise self._model.error(f"{key!r} has {len(pattern)} entries for {num_layers} layers")
        else:
            # An unknown pattern counts as full attention everywhere: never too little memory.
            period = self._model.integer(key, WINDOW_PERIODS.get(self._prefix, 1))
            pattern = [layer % period < period - 1 if period else True for layer in range(num_layers)]
        return tuple(window if is_local else None for is_local in pattern[:num_layers])


def _sorted_tensors(model: ModelFile, num_layers: int) -> tuple[Mapping[int, _Block], list[Tensor]]:
    blocks: dict[int, _Block] = defaultdict(_Block)
    rest = []
    for tensor in model.tensors.values():
        match tensor.name.split(".", 2):
            case ["blk", number, suffix] if number.isdigit():
                if int(number) < num_layers:
                    blocks[int(number)].add(suffix, tensor)
            case _:
                rest.append(tensor)
    for index in range(num_layers):
        if index not in blocks:
            raise model.error(f"layer {index} of {num_layers} has no tensors")
    return blocks, rest


def _whole(
    model: ModelFile, architecture: str, layers: tuple[LayerDemand, ...], rest: list[Tensor]
) -> ModelDemand:
    by_name = {tensor.name: tensor for tensor in rest}
    table = by_name.get(TABLES[0])
    if table is None:
        raise model.error(f"the tensor {TABLES[0]} is missing")
    tables = [by_name[name] for name in TABLES if name in by_name]
    head = by_name.get(HEAD, table)
    is_tied = head is table
    small = sum(tensor.num_bytes for tensor in rest if tensor not in tables and tensor is not head)
    n_embd = model.integer(f"{architecture}.embedding_length")
    name = model.get("general.name")
    return ModelDemand(
        name=name if isinstance(name, str) and name else model.path.stem,
        quantisation="as in the file",
        layers=layers,
        row_values=n_embd,
        boundary_values=_boundary_values(model, architecture, n_embd, len(layers)),
        embedding_bytes=sum(tensor.num_bytes for tensor in tables),
        embedding_parameters=sum(math.prod(tensor.dims) for tensor in tables),
        head_bytes=head.num_bytes + small,
        head_parameters=math.prod(head.dims),
        tied_bytes=table.num_bytes if is_tied else 0,
        tied_parameters=math.prod(table.dims) if is_tied else 0,
        trained_context_tokens=model.integer(f"{architecture}.context_length"),
    )


def _boundary_values(model: ModelFile, architecture: str, n_embd: int, num_layers: int) -> tuple[int, ...]:
    bank = _bank_layers(model, architecture)
    per_layer = model.integer(f"{architecture}.embedding_length_per_layer_input", 0)
    rows = [1 if bank is None else (cut - 1) // bank + 2 for cut in range(1, num_layers)]
    return tuple(
        row_count * n_embd + per_layer * (num_layers - cut) for cut, row_count in enumerate(rows, start=1)
    )


def _bank_layers(model: ModelFile, architecture: str) -> int | None:
    key = f"{architecture}.attn_res.block_size"
    if architecture == "kimi-k3" and key not in model.fields:
        raise ModelFileError(f"{model.path} has no {key!r}, so what crosses a cut is not known.")
    return model.integer(key, 0) or None
