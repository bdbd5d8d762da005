"""What a model is, in the numbers that cutting, placing and admitting need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class LayerRange(NamedTuple):
    """A half-open range of layers, `[start, end)`."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    @property
    def num_layers(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes of one model file. All byte counts are of the file's own quantisation.

    kv_bytes_per_token: F16 keys and values, one entry a layer; a sliding-window layer counts
    as if it kept every token (its true cost is bounded by the window).
    content_id: identifies the file's content by its header and samples of every tensor; what it can
    and cannot notice is said where it is made (model/spec_reader.py).
    """

    name: str
    architecture: str
    num_layers: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    kv_bytes_per_token: tuple[int, ...]
    content_id: str

    @property
    def total_bytes(self) -> int:
        return sum(self.layer_bytes) + self.embedding_bytes + self.head_bytes

    def slice_bytes(self, layers: LayerRange) -> int:
        """Weight bytes a worker of `layers` holds (the last one with the LM head)."""
        body = sum(self.layer_bytes[layers.start : layers.end])
        return body + (self.head_bytes if layers.end == self.num_layers else 0)

    def slice_kv_bytes_per_token(self, layers: LayerRange) -> int:
        return sum(self.kv_bytes_per_token[layers.start : layers.end])
