"""A model file in the numbers that cutting, placing and admitting need.

Owns reading a ModelSpec, the legal cuts and the content id. Chooses no cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shoal.core.specs import LayerRange, ModelSpec
from shoal.model import slicing
from shoal.model.architectures import OUTPUT_HEAD, OUTPUT_NORM, TOKEN_EMBEDDING, ArchitectureRule, rule_for
from shoal.model.gguf_file import ModelFile
from shoal.model.gguf_header import Tensor

F16_BYTES: Final = 2
Q8_0_BLOCK: Final = 32  # values that share a scale; a row is whole blocks

# What the content id reads of a large tensor: this many windows, spread evenly, first and last
# bytes included. Smaller tensors are read whole.
NUM_WINDOWS: Final = 16
WINDOW_BYTES: Final = 4096
CONTENT_ID_CHARS: Final = 32


def read_spec(path: Path) -> ModelSpec:
    """Raises ModelFileError where the file is damaged, UnsupportedModel where it cannot be cut."""
    model = ModelFile(path)
    rule = rule_for(model)
    num_layers = rule.num_layers(model)
    embedding = model.tensor(TOKEN_EMBEDDING)
    head = model.tensors.get(OUTPUT_HEAD, embedding)
    n_embd = model.integer(f"{rule.name}.embedding_length")
    _check_table(model, embedding, n_embd)
    _check_table(model, head, n_embd)
    return ModelSpec(
        name=_name(model),
        architecture=rule.name,
        num_layers=num_layers,
        n_embd=n_embd,
        n_vocab=embedding.dims[1],
        n_ctx_train=model.integer(f"{rule.name}.context_length"),
        layer_bytes=_layer_bytes(model, num_layers),
        embedding_bytes=embedding.num_bytes,
        head_bytes=head.num_bytes + model.tensor(OUTPUT_NORM).num_bytes,
        kv_bytes_per_token=_kv_bytes_per_token(model, rule, num_layers, n_embd),
        content_id=content_id(model),
    )


def legal_cuts(path: Path) -> tuple[int, ...]:
    """Layers before which the model may be cut in two, ascending. For more slices than two, ask
    `why_illegal` of each: two legal cuts can enclose a slice that is not."""
    model = ModelFile(path)
    rule = rule_for(model)
    return slicing.legal_cuts(rule, rule.shape(model))


def why_illegal(path: Path, layers: LayerRange) -> str | None:
    """Why `layers` cannot be a slice of this model; None where it can."""
    model = ModelFile(path)
    rule = rule_for(model)
    return rule.why_illegal(rule.shape(model), layers)


def why_not_invariant(path: Path) -> str | None:
    """Why a model that `read_spec` can read cannot have the caches of invariant mode; None where
    it can."""
    model = ModelFile(path)
    rule = rule_for(model)
    heads = model.integer_per_layer(f"{rule.name}.attention.head_count", rule.num_layers(model))
    n_embd = model.integer(f"{rule.name}.embedding_length")
    for width in _head_widths(model, rule, n_embd // heads[0]):
        if width % Q8_0_BLOCK:
            return (
                f"its attention heads are {width} values wide, and a Q8_0 cache holds blocks of {Q8_0_BLOCK}"
            )
    return None


def content_id(model: ModelFile) -> str:
    """A digest of what the file holds, without reading gigabytes (0.05 s for a 1.5B model).

    Covers the file's size, its whole header (metadata, vocabulary, tensor records), every tensor of
    up to 64 KiB whole, and 16 windows of 4 KiB of each larger one. Another model, quantisation,
    fine-tune or tokenizer changes it. What it can miss: a change confined to bytes between the
    windows, such as a bit that rotted on disk; that is what a source's own sha256 is for.
    """
    digest = hashlib.sha256(f"size {model.size_bytes}\n".encode())
    starts = [tensor.start for tensor in model.tensors.values()]
    digest.update(model.raw(0, min(starts, default=model.size_bytes)))
    for tensor in model.tensors.values():
        for start, end in _windows(tensor):
            digest.update(model.raw(start, end))
    return digest.hexdigest()[:CONTENT_ID_CHARS]


def _windows(tensor: Tensor) -> Iterator[tuple[int, int]]:
    if tensor.num_bytes <= NUM_WINDOWS * WINDOW_BYTES:
        yield tensor.start, tensor.start + tensor.num_bytes
        return
    room = tensor.num_bytes - WINDOW_BYTES
    for index in range(NUM_WINDOWS):
        start = tensor.start + room * index // (NUM_WINDOWS - 1)
        yield start, start + WINDOW_BYTES


def _name(model: ModelFile) -> str:
    name = model.get("general.name")
    return name if isinstance(name, str) and name else model.path.stem


def _check_table(model: ModelFile, table: Tensor, n_embd: int) -> None:
    if len(table.dims) != 2 or table.dims[0] != n_embd:
        raise model.error(f"{table.name} has the dimensions {list(table.dims)}, not [{n_embd}, n_vocab]")


def _layer_bytes(model: ModelFile, num_layers: int) -> tuple[int, ...]:
    sums = [0] * num_layers
    for tensor in model.tensors.values():
        layer, _ = slicing.split_block_name(model, tensor.name)
        if layer is None:
            continue
        if layer >= num_layers:
            raise model.error(f"the tensor {tensor.name} lies beyond its {num_layers} layers")
        sums[layer] += tensor.num_bytes
    if 0 in sums:
        raise model.error(f"layer {sums.index(0)} has no tensors")
    return tuple(sums)


def _kv_bytes_per_token(
    model: ModelFile, rule: ArchitectureRule, num_layers: int, n_embd: int
) -> tuple[int, ...]:
    attention = f"{rule.name}.attention"
    heads = model.integer_per_layer(f"{attention}.head_count", num_layers)
    if min(heads) < 1:
        raise model.error(f"{attention}.head_count must be at least 1 in every layer")
    # head_count_kv is absent where it equals head_count.
    has_kv = f"{attention}.head_count_kv" in model.fields
    kv_heads = model.integer_per_layer(f"{attention}.head_count_kv", num_layers) if has_kv else heads
    widths = _head_widths(model, rule, n_embd // heads[0])
    return tuple(count * sum(widths) * F16_BYTES for count in kv_heads)


def _head_widths(model: ModelFile, rule: ArchitectureRule, usual: int) -> tuple[int, int]:
    """Values of one head's key and of its value."""
    attention = f"{rule.name}.attention"
    return model.integer(f"{attention}.key_length", usual), model.integer(f"{attention}.value_length", usual)
