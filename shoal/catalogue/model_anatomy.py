"""A model's anatomy in numbers: its layers, tables and what crosses a cut. Parameters, no bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.catalogue.mixers import Mixer
from shoal.catalogue.provenance import Provenance

GATED_MATRICES: Final = 3  # gate, up, down
MIX_COEFFICIENTS: Final = 6  # of one mHC mixing, times the streams: DeepSeek V4's implementation


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """A gated feed-forward block of width `inner`."""

    inner: int

    def trunk_parameters(self, hidden: int) -> int:
        return GATED_MATRICES * hidden * self.inner


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Routed experts of which a token uses top_k, and shared ones that every token uses.

    inner: width of one routed expert; shared_inner: of all shared ones together. latent: width of the
    rows that routed experts take, where it is not the hidden one (then two projections lead there
    and back). dense_inner: of a dense block beside the experts (Gemma 4). has_bias: experts
    and router have one. has_shared_gate: a scalar gate on the shared experts.
    """

    experts: int
    top_k: int
    inner: int
    shared_inner: int = 0
    latent: int | None = None
    dense_inner: int = 0
    has_bias: bool = False
    has_shared_gate: bool = False

    def row_values(self, hidden: int) -> int:
        return hidden if self.latent is None else self.latent

    def expert_parameters(self, hidden: int) -> int:
        row = self.row_values(hidden)
        return GATED_MATRICES * row * self.inner + (2 * self.inner + row) * self.has_bias

    def trunk_parameters(self, hidden: int) -> int:
        router = hidden * self.experts + self.experts * self.has_bias
        always = GATED_MATRICES * hidden * (self.shared_inner + self.dense_inner)
        latent = 0 if self.latent is None else 2 * hidden * self.latent
        return router + always + latent + hidden * self.has_shared_gate


FeedForward = DenseFeedForward | MixtureOfExperts


@dataclass(frozen=True, slots=True)
class LayerAnatomy:
    """One layer: how it mixes tokens, then what it does to each."""

    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Bits a parameter takes, scales included, by where it is used.

    trunk: all but routed experts and tables. embedding: the token table; head: the LM head.
    """

    name: str
    title: str
    trunk_bits: float
    expert_bits: float
    embedding_bits: float
    head_bits: float
    aliases: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelAnatomy:
    """One model.

    context_tokens: the longest it was made for. is_tied: the token table is also the LM head.
    streams: residual rows side by side (DeepSeek V4: 4). bank_layers: every so many layers one more row
    is banked and read by all later layers (Kimi K3: 12); None where there is no bank.
    per_layer_input: values a token of a second table for every layer (Gemma 4 E-models); 0 without.
    norms_per_layer: of hidden width. native: name of the quantisation that it was published in.
    nominal_parameters: the round figure that goes by its name, where people compute with it.
    """

    name: str
    title: str
    hidden: int
    vocabulary: int
    context_tokens: int
    layers: tuple[LayerAnatomy, ...]
    is_tied: bool = False
    streams: int = 1
    bank_layers: int | None = None
    per_layer_input: int = 0
    norms_per_layer: int = 2
    native: str | None = None
    nominal_parameters: float | None = None
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def boundary_values(self, cut: int) -> int:
        """Values that one token ships across the cut before layer `cut`.

        Plain models: one row. Streams: all of them. A bank: the rows banked by the layers before the cut,
        one at layer 0 and one every bank_layers after it, and the current one. Per-layer inputs:
        those of the layers that follow, made on the first machine.
        """
        rows = self.streams if self.bank_layers is None else (cut - 1) // self.bank_layers + 2
        return rows * self.hidden + self.per_layer_input * (self.num_layers - cut)

    def trunk_parameters(self, layer: int) -> int:
        """Of layer `layer`, used by every token."""
        own = self.layers[layer]
        body = own.mixer.parameters(self.hidden) + own.feed_forward.trunk_parameters(self.hidden)
        norms = self.norms_per_layer * self.hidden
        bank = 0 if self.bank_layers is None else 2 * self.hidden
        mixing = 2 * self.streams * self.hidden * MIX_COEFFICIENTS * self.streams if self.streams > 1 else 0
        per_layer = (2 * self.hidden + 1) * self.per_layer_input
        # The second table's projection is computed once, where tokens come in.
        projection = self.hidden * self.per_layer_input * self.num_layers if layer == 0 else 0
        return body + norms + bank + mixing + per_layer + projection

    @property
    def table_parameters(self) -> int:
        """Of one vocabulary matrix."""
        return self.vocabulary * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Looked up by token: the token table, and the per-layer one where there is one."""
        return self.table_parameters + self.vocabulary * self.per_layer_input * self.num_layers
