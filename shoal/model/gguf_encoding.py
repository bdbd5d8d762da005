"""Bytes of a GGUF header: what the slicer writes before the tensors.

Owns encoding. Metadata that a slice keeps is copied as the bytes it has in the model file (never
decoded), so nothing can be lost on the way; only the few edited values are encoded here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gguf import GGMLQuantizationType, GGUFValueType

from shoal.model.gguf_file import ModelFile
from shoal.model.gguf_header import SCALAR_DTYPES, padded

GGUF_VERSION = 3


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor of the file to be written. dims: innermost first."""

    name: str
    kind: GGMLQuantizationType
    dims: tuple[int, ...]
    num_bytes: int


def encode_integer(value: int) -> bytes:
    return struct.pack("<IQ" if value >= 2**32 else "<II", *_tagged_integer(value))


def encode_text(value: str) -> bytes:
    return struct.pack("<I", GGUFValueType.STRING) + _length_prefixed(value)


def encode_bools(values: Sequence[bool]) -> bytes:
    header = struct.pack("<IIQ", GGUFValueType.ARRAY, GGUFValueType.BOOL, len(values))
    return header + bytes(bool(value) for value in values)


def copied_value(model: ModelFile, key: str) -> bytes:
    """The value of `key`, with its type, exactly as in `model`."""
    field = model.fields[key]
    return bytes(model.raw(field.kind_start, field.end))


def sliced_array(model: ModelFile, key: str, start: int, end: int) -> bytes:
    """Entries `[start, end)` of the numeric array `key`, of the same type."""
    field = model.fields[key]
    if field.item_kind is None or field.item_kind is GGUFValueType.STRING:
        raise model.error(f"the metadata key {key!r} is no array of numbers")
    width = SCALAR_DTYPES[field.item_kind].itemsize
    header = struct.pack("<IIQ", GGUFValueType.ARRAY, field.item_kind, end - start)
    return header + bytes(model.raw(field.value_start + start * width, field.value_start + end * width))


def encode_header(metadata: Mapping[str, bytes], tensors: Sequence[NewTensor], alignment: int) -> bytes:
    """Everything that stands before the first tensor's bytes, padded to `alignment`."""
    parts = [b"GGUF", struct.pack("<IQQ", GGUF_VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_length_prefixed(key), value]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        parts += [_length_prefixed(tensor.name), dims, struct.pack("<IQ", tensor.kind, offset)]
        offset += padded(tensor.num_bytes, alignment)
    header = b"".join(parts)
    return header.ljust(padded(len(header), alignment), b"\0")


def _tagged_integer(value: int) -> tuple[int, int]:
    return (GGUFValueType.UINT64 if value >= 2**32 else GGUFValueType.UINT32, value)


def _length_prefixed(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw
