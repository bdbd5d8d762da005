"""Cutting: a layer range of a model becomes a file that unmodified llama.cpp loads.

Owns what a slice file holds: the blocks `[start, end)` renumbered from 0; the tokenizer, and the LM
head in the embedding's place, only in the last slice; a one-row embedding in the others, since rows
come in from outside. architectures says what each architecture needs on top. Tensor bytes are copied
from the mapped model in chunks, so memory stays flat however large the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType

from shoal.core.errors import IllegalCut, UnsupportedModel
from shoal.core.specs import LayerRange
from shoal.model.architectures import (
    OUTPUT_HEAD,
    OUTPUT_NORM,
    TOKEN_EMBEDDING,
    ArchitectureRule,
    ModelShape,
    rule_for,
)
from shoal.model.atomic_file import atomic_file, write_all
from shoal.model.gguf_encoding import NewTensor, copied_value, encode_header, encode_integer, encode_text
from shoal.model.gguf_file import ModelFile
from shoal.model.gguf_header import Tensor, padded

SLICER_VERSION: Final = 1
"""Grows whenever the same cut would give other bytes: caches must not mix them."""

CHUNK_BYTES: Final = 4 * 2**20

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of the file to be written, and where its bytes come from."""

    tensor: NewTensor
    source: Tensor | bytes


@dataclass(frozen=True, slots=True)
class _Draft:
    """A file, ready to be written: its header and its tensors in order."""

    header: bytes
    parts: tuple[_Part, ...]
    alignment: int

    @property
    def num_bytes(self) -> int:
        return len(self.header) + sum(padded(part.tensor.num_bytes, self.alignment) for part in self.parts)


def cut_slice(model_path: Path, layers: LayerRange, out_path: Path, progress: Progress | None = None) -> Path:
    """Write the slice `layers` of the model to `out_path` and return it.

    The file appears whole or not at all; whatever `progress` raises stops the cut and leaves nothing.
    Raises ModelFileError, UnsupportedModel or IllegalCut before anything is written, ConfigError
    where the folder cannot take the file.
    """
    model = ModelFile(model_path)
    draft = _draft_slice(model, rule_for(model), LayerRange(*layers))
    _write(model, draft, out_path, progress)
    return out_path


def cut_embedding(model_path: Path, out_path: Path, progress: Progress | None = None) -> Path:
    """Write the token embedding table alone, with the metadata that stage 0 needs.

    Raises and writes as `cut_slice` does.
    """
    model = ModelFile(model_path)
    _write(model, _draft_embedding(model), out_path, progress)
    return out_path


def slice_file_bytes(model_path: Path, layers: LayerRange) -> int:
    """The exact size of the file that `cut_slice` would write. Raises as it does."""
    model = ModelFile(model_path)
    return _draft_slice(model, rule_for(model), LayerRange(*layers)).num_bytes


def embedding_file_bytes(model_path: Path) -> int:
    """The exact size of the file that `cut_embedding` would write. Raises as it does."""
    return _draft_embedding(ModelFile(model_path)).num_bytes


def check_cut(rule: ArchitectureRule, shape: ModelShape, layers: LayerRange) -> None:
    """Raises IllegalCut, saying why and which cuts are legal."""
    why = rule.why_illegal(shape, layers)
    if why is not None:
        raise IllegalCut(
            f"Layers {layers} cannot be a slice: {why}.",
            next_step=f"This model may be cut in two before layers {runs_text(legal_cuts(rule, shape))}.",
        )


def legal_cuts(rule: ArchitectureRule, shape: ModelShape) -> tuple[int, ...]:
    """Layers before which the model may be cut into two slices, ascending."""
    return tuple(
        cut
        for cut in range(1, shape.num_layers)
        if rule.why_illegal(shape, LayerRange(0, cut)) is None
        and rule.why_illegal(shape, LayerRange(cut, shape.num_layers)) is None
    )


# ---------------------------------------------------------------- what goes in


def _draft_slice(model: ModelFile, rule: ArchitectureRule, layers: LayerRange) -> _Draft:
    shape = rule.shape(model)
    check_cut(rule, shape, layers)
    is_last = layers.end == shape.num_layers
    if is_last and rule.needs_output_weight:
        raise UnsupportedModel(
            f"The last slice of a {rule.name} model needs an LM head of its own, which is not built yet."
        )
    metadata = _slice_metadata(model, rule, layers, is_last)
    parts = (
        *(_head_parts(model) if is_last else _row_parts(model, rule)),
        _copied(model.tensor(OUTPUT_NORM), OUTPUT_NORM),
        *(
            _copied(model.tensors[name], name)
            for name in sorted(rule.carried_tensors)
            if name in model.tensors
        ),
        *_block_parts(model, rule, layers),
    )
    return _assemble(model, metadata, parts)


def _draft_embedding(model: ModelFile) -> _Draft:
    rule = rule_for(model)
    table = model.tensor(TOKEN_EMBEDDING)
    metadata = {
        key: copied_value(model, key)
        for key in model.fields
        if key in ("general.architecture", "general.name", f"{rule.name}.embedding_length")
    }
    return _assemble(model, metadata, (_copied(table, TOKEN_EMBEDDING),))


def _slice_metadata(
    model: ModelFile, rule: ArchitectureRule, layers: LayerRange, is_last: bool
) -> Mapping[str, bytes]:
    metadata = {key: copied_value(model, key) for key in _kept_keys(model, is_last)}
    metadata |= rule.metadata_edits(model, layers)
    if not is_last:
        metadata["tokenizer.ggml.model"] = encode_text("no_vocab")
        metadata[f"{rule.name}.vocab_size"] = encode_integer(1)
    metadata["shoal.layer_start"] = encode_integer(layers.start)
    metadata["shoal.layer_end"] = encode_integer(layers.end)
    metadata["shoal.num_layers"] = encode_integer(rule.shape(model).num_layers)
    metadata["shoal.slicer_version"] = encode_integer(SLICER_VERSION)
    return metadata


def _kept_keys(model: ModelFile, is_last: bool) -> Iterator[str]:
    for key in model.fields:
        if key.startswith("split.") or (key.startswith("tokenizer.") and not is_last):
            continue
        yield key


def _head_parts(model: ModelFile) -> Iterable[_Part]:
    """The head in the embedding's place: llama.cpp ties them, and no second table is held."""
    head = model.tensors.get(OUTPUT_HEAD) or model.tensor(TOKEN_EMBEDDING)
    return (_copied(head, TOKEN_EMBEDDING),)


def _row_parts(model: ModelFile, rule: ArchitectureRule) -> Iterable[_Part]:
    """One zero row: llama.cpp wants an embedding, and rows come in from outside."""
    n_embd = model.integer(f"{rule.name}.embedding_length")
    row = NewTensor(TOKEN_EMBEDDING, GGMLQuantizationType.F32, (n_embd, 1), n_embd * 4)
    return (_Part(row, bytes(row.num_bytes)),)


def _block_parts(model: ModelFile, rule: ArchitectureRule, layers: LayerRange) -> Iterator[_Part]:
    seen: set[int] = set()
    for tensor in model.tensors.values():
        layer, suffix = split_block_name(model, tensor.name)
        if layer is None or not layers.start <= layer < layers.end:
            continue
        seen.add(layer)
        name = f"blk.{layer - layers.start}.{suffix}"
        factor = rule.tensor_factor(model, layers, suffix)
        yield _copied(tensor, name) if factor == 1.0 else _scaled(model, tensor, name, factor)
    missing = [layer for layer in range(*layers) if layer not in seen]
    if missing:
        raise model.error(f"layer {missing[0]} has no tensors")


def split_block_name(model: ModelFile, name: str) -> tuple[int | None, str]:
    """`blk.7.attn_q.weight` -> (7, `attn_q.weight`); (None, name) outside the blocks."""
    if not name.startswith("blk."):
        return None, name
    number, _, suffix = name.removeprefix("blk.").partition(".")
    if not number.isdecimal() or not suffix:
        raise model.error(f"the tensor {name} has no layer number")
    return int(number), suffix


def _copied(source: Tensor, name: str) -> _Part:
    return _Part(NewTensor(name, source.kind, source.dims, source.num_bytes), source)


def _scaled(model: ModelFile, source: Tensor, name: str, factor: float) -> _Part:
    if source.kind is not GGMLQuantizationType.F32:
        raise UnsupportedModel(
            f"{model.path} needs {source.name} rescaled in a slice, and it is {source.kind.name}, not F32."
        )
    values = model.tensor_rows(source).view(np.float32)
    scaled = (values.astype(np.float64) * factor).astype(np.float32)
    return _Part(NewTensor(name, source.kind, source.dims, source.num_bytes), scaled.tobytes())


def _assemble(model: ModelFile, metadata: Mapping[str, bytes], parts: Iterable[_Part]) -> _Draft:
    parts = tuple(parts)
    header = encode_header(metadata, [part.tensor for part in parts], model.alignment)
    return _Draft(header, parts, model.alignment)


def runs_text(numbers: tuple[int, ...]) -> str:
    """`1, 2, 3, 5` -> `1 to 3, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "none"


# ---------------------------------------------------------------- writing


def _write(model: ModelFile, draft: _Draft, out_path: Path, progress: Progress | None) -> None:
    with atomic_file(out_path, draft.num_bytes) as file:
        done = 0
        for chunk in _chunks(model, draft):
            write_all(file, chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, draft.num_bytes)


def _chunks(model: ModelFile, draft: _Draft) -> Iterator[bytes | memoryview]:
    yield draft.header
    for part in draft.parts:
        if isinstance(part.source, Tensor):
            end = part.source.start + part.source.num_bytes
            for start in range(part.source.start, end, CHUNK_BYTES):
                chunk_end = min(start + CHUNK_BYTES, end)
                yield model.raw(start, chunk_end)
                model.release(start, chunk_end)
        else:
            yield part.source
        padding = padded(part.tensor.num_bytes, draft.alignment) - part.tensor.num_bytes
        if padding:
            yield bytes(padding)
