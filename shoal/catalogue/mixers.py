"""How a layer mixes tokens: attention of several kinds, and recurrences. Parameters and caches.

Each class counts its weight matrices (biases where the model has them, norms too), what a sequence
keeps in it, and the operations of attending to one cached token. Knows no bytes: quantisation
comes later. The matrices are those of the published implementations; the tests hold every model's
sum to its published total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

OPS = 2  # a multiplication and an addition


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one sequence keeps in one layer, in values.

    per_token: growth, until `window_tokens` (None: for ever). read_tokens: at most this many of them
    are read for one token. index_per_token: further growth that is always read whole. fixed: cache
    values whatever the length. state: recurrent values, float32, rewritten for every token.
    """

    per_token: float = 0.0
    window_tokens: int | None = None
    read_tokens: int | None = None
    index_per_token: float = 0.0
    fixed: int = 0
    state: int = 0


class Mixer(Protocol):
    """One kind of token mixing. hidden: width of the residual row."""

    def parameters(self, hidden: int) -> int: ...

    @property
    def cache(self) -> CacheShape: ...

    @property
    def ops_per_cached_token(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Indexer:
    """Chooses which cached tokens are attended to (DeepSeek sparse attention). top_tokens: how many."""

    heads: int
    dim: int
    top_tokens: int


@dataclass(frozen=True, slots=True)
class GroupedQueryAttention:
    """Multi-head attention whose query heads share key-value heads.

    window: tokens attended to in a sliding-window layer. has_output_gate: a gate as wide as the
    queries. has_bias: on query, key and value, and on the output too where has_output_bias.
    shares_projection: one matrix for keys and values (both are cached). borrows_cache: keys and
    values of an earlier layer are used. top_tokens: block-sparse attention reads at most so many.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    has_output_gate: bool = False
    has_bias: bool = False
    has_output_bias: bool = False
    has_qk_norm: bool = False
    has_sinks: bool = False
    shares_projection: bool = False
    borrows_cache: bool = False
    top_tokens: int | None = None

    def parameters(self, hidden: int) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        kv_matrices = 0 if self.borrows_cache else 1 if self.shares_projection else 2
        matrices = hidden * queries * (3 if self.has_output_gate else 2) + hidden * keys * kv_matrices
        biases = (queries + keys * kv_matrices) * self.has_bias + hidden * self.has_output_bias
        norms = 2 * self.head_dim * self.has_qk_norm
        return matrices + biases + norms + self.heads * self.has_sinks

    @property
    def cache(self) -> CacheShape:
        if self.borrows_cache:
            return CacheShape()
        return CacheShape(
            per_token=2 * self.kv_heads * self.head_dim,
            window_tokens=self.window,
            read_tokens=self.top_tokens,
        )

    @property
    def ops_per_cached_token(self) -> float:
        """Query times key, and weight times value."""
        return 2 * OPS * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2): the cache holds one compressed row a token.

    q_lora: rank of the query projection; None for a full one.
    """

    heads: int
    q_lora: int | None
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_dim: int
    has_output_gate: bool = False
    indexer: Indexer | None = None

    def parameters(self, hidden: int) -> int:
        queries, values = self.heads * (self.qk_nope + self.qk_rope), self.heads * self.v_dim
        if self.q_lora is None:
            query = hidden * queries
        else:
            query = hidden * self.q_lora + self.q_lora + self.q_lora * queries
        down = hidden * (self.kv_lora + self.qk_rope) + self.kv_lora
        up = self.kv_lora * self.heads * (self.qk_nope + self.v_dim)
        output = hidden * values * (2 if self.has_output_gate else 1)
        return query + down + up + output + self._indexer_parameters(hidden)

    def _indexer_parameters(self, hidden: int) -> int:
        if self.indexer is None:
            return 0
        queries = (self.q_lora or hidden) * self.indexer.heads * self.indexer.dim
        return queries + hidden * self.indexer.dim + hidden * self.indexer.heads + 2 * self.indexer.dim

    @property
    def cache(self) -> CacheShape:
        return CacheShape(
            per_token=self.kv_lora + self.qk_rope,
            read_tokens=self.indexer.top_tokens if self.indexer else None,
            index_per_token=self.indexer.dim if self.indexer else 0,
        )

    @property
    def ops_per_cached_token(self) -> float:
        """With the up-projection absorbed into the query: scores over the whole row, values over
        its compressed part."""
        return OPS * self.heads * (2 * self.kv_lora + self.qk_rope)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek V4: one key-value head over a window and over compressed groups of `ratio` tokens.

    ratio: None for window only, 4 (overlapping groups, chosen by an indexer) or 128 (all read).
    """

    heads: int
    head_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    ratio: int | None = None
    indexer: Indexer | None = None

    def parameters(self, hidden: int) -> int:
        inner = self.heads * self.head_dim
        query = hidden * self.q_lora + self.q_lora + self.q_lora * inner
        key_value = hidden * self.head_dim + self.head_dim
        output = inner * self.o_lora + self.o_groups * self.o_lora * hidden
        return query + key_value + output + self.heads + self._compressor_parameters(hidden)

    def _compressor_parameters(self, hidden: int) -> int:
        if self.ratio is None:
            return 0
        width = self.head_dim * (2 if self.indexer else 1)  # overlapping groups are twice as wide
        compressor = 2 * hidden * width + width * self.ratio + self.head_dim
        if self.indexer is None:
            return compressor
        queries = self.q_lora * self.indexer.heads * self.indexer.dim + hidden * self.indexer.heads
        keys = 4 * hidden * self.indexer.dim + 2 * self.indexer.dim * self.ratio + self.indexer.dim
        return compressor + queries + keys

    @property
    def cache(self) -> CacheShape:
        fixed = self.window * self.head_dim
        if self.ratio is None:
            return CacheShape(fixed=fixed)
        return CacheShape(
            per_token=self.head_dim / self.ratio,
            read_tokens=self.indexer.top_tokens * self.ratio if self.indexer else None,
            index_per_token=self.indexer.dim / self.ratio if self.indexer else 0,
            fixed=fixed,
        )

    @property
    def ops_per_cached_token(self) -> float:
        """Over compressed tokens; the window's share is constant and left out."""
        return 2 * OPS * self.heads * self.head_dim / self.ratio if self.ratio else 0


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """The recurrence of Qwen3-Next and Qwen3.5. conv: width of the short convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int

    @property
    def _conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        values = self.value_heads * self.value_dim
        projections = hidden * (self._conv_channels + values + 2 * self.value_heads)
        small = self._conv_channels * self.conv + 2 * self.value_heads + self.value_dim
        return projections + small + values * hidden

    @property
    def cache(self) -> CacheShape:
        memory = self.value_heads * self.key_dim * self.value_dim
        return CacheShape(state=memory + self._conv_channels * (self.conv - 1))

    @property
    def ops_per_cached_token(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention:
    """The recurrence of Kimi Linear and Kimi K3. has_full_gate: K3's output gate is a full matrix,
    Kimi Linear's has the rank of a head."""

    heads: int
    head_dim: int
    conv: int
    has_full_gate: bool = True

    def parameters(self, hidden: int) -> int:
        inner = self.heads * self.head_dim
        low_rank = hidden * self.head_dim + self.head_dim * inner
        gate = hidden * inner if self.has_full_gate else low_rank
        small = 3 * inner * self.conv + inner + self.heads + self.head_dim
        return 4 * hidden * inner + gate + low_rank + hidden * self.heads + small

    @property
    def cache(self) -> CacheShape:
        inner = self.heads * self.head_dim
        return CacheShape(state=inner * self.head_dim + 3 * inner * (self.conv - 1))

    @property
    def ops_per_cached_token(self) -> float:
        return 0.0
