"""A model file, opened defensively: its metadata, its tensors' places, its mapped bytes.

Owns the mapping and the decoding of metadata values; gguf_header walks the header. Knows nothing
of architectures or cuts.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from shoal.core.errors import ModelFileError
from shoal.model.gguf_header import (
    DEFAULT_ALIGNMENT,
    MAX_ALIGNMENT,
    SCALAR_DTYPES,
    Cursor,
    Field,
    Tensor,
    file_error,
    num_row_bytes,
    read_fields,
    read_preamble,
    read_tensors,
)

Scalar = int | float | bool | str


class ModelFile:
    """One GGUF file, mapped read-only. `fields` and `tensors` keep the file's order."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError, naming the file and what is wrong with it."""
        self.path = path
        self._map = _map_file(path)
        self.size_bytes = len(self._map)
        cursor = Cursor(path, self._map)
        num_tensors, num_fields = read_preamble(cursor)
        self.fields: dict[str, Field] = read_fields(cursor, num_fields)
        self.alignment = self._read_alignment()
        self.tensors: dict[str, Tensor] = read_tensors(cursor, num_tensors, self.alignment)

    # ------------------------------------------------------------ metadata

    def get(self, key: str) -> Scalar | None:
        """The decoded scalar or string of `key`; None where it is absent or an array."""
        field = self.fields.get(key)
        if field is None or field.kind is GGUFValueType.ARRAY:
            return None
        if field.kind is GGUFValueType.STRING:
            return self._decode_text(key, self._map[field.value_start + 8 : field.end])
        value: Scalar = np.frombuffer(self._map, SCALAR_DTYPES[field.kind], 1, field.value_start)[0].item()
        return value

    def text(self, key: str) -> str:
        """Raises ModelFileError where `key` is absent or not a string."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(f"the metadata key {key!r} is missing or not a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Raises ModelFileError where `key` is not a whole number, or absent without a default."""
        value = self.get(key)
        if value is None and key not in self.fields and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"the metadata key {key!r} is missing or not a whole number")
        return value

    def numbers(self, key: str) -> NDArray[Any] | None:
        """The entries of a numeric or boolean array; None where `key` is absent or a scalar."""
        field = self.fields.get(key)
        if field is None or field.item_kind is None:
            return None
        if field.item_kind is GGUFValueType.STRING:
            raise self.error(f"the metadata key {key!r} holds texts where numbers belong")
        return np.frombuffer(self._map, SCALAR_DTYPES[field.item_kind], field.count, field.value_start)

    def integer_per_layer(self, key: str, num_layers: int, default: int | None = None) -> tuple[int, ...]:
        """A scalar repeated for each layer, or an array that must have `num_layers` entries."""
        array = self.numbers(key)
        if array is None:
            return (self.integer(key, default),) * num_layers
        if len(array) != num_layers:
            raise self.error(f"the metadata key {key!r} has {len(array)} entries for {num_layers} layers")
        return tuple(int(entry) for entry in array.tolist())

    # ------------------------------------------------------------ bytes

    def raw(self, start: int, end: int) -> memoryview:
        """The file's bytes `[start, end)`, not copied."""
        return memoryview(self._map)[start:end]

    def release(self, start: int, end: int) -> None:
        """Give the pages of `[start, end)` back: they count as this process's memory once read.
        Reading them again is allowed, and maps them again."""
        first_page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first_page, end - first_page)

    def tensor_rows(self, tensor: Tensor) -> NDArray[np.uint8]:
        """`[num_rows, row_bytes]`, not copied; a row is the innermost dimension."""
        row_bytes = num_row_bytes(tensor.kind, tensor.dims[0])
        flat = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.start)
        return flat.reshape(-1, row_bytes)

    def tensor(self, name: str) -> Tensor:
        """Raises ModelFileError where the file has no such tensor."""
        found = self.tensors.get(name)
        if found is None:
            raise self.error(f"the tensor {name} is missing")
        return found

    def error(self, what: str) -> ModelFileError:
        return file_error(self.path, what)

    def _read_alignment(self) -> int:
        alignment = self.integer("general.alignment", DEFAULT_ALIGNMENT)
        if alignment < 8 or alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
            raise self.error(f"general.alignment is {alignment}, not a power of two from 8 to 2^20")
        return alignment

    def _decode_text(self, key: str, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"the metadata key {key!r} is not UTF-8 text") from error


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"There is no model file at {path}.",
            next_step="Check the path, or run `shoal inspect` for names.",
        ) from error
    except ValueError as error:  # mmap's word for a file of no bytes
        raise file_error(path, "it is empty") from error
    except OSError as error:
        raise file_error(path, f"it cannot be read: {error.strerror or error}") from error
