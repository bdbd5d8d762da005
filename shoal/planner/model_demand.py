"""What a model asks of machines, in bytes and operations: per layer, per slice, whole.

The one form in which the cost model sees a model, wherever it comes from (the catalogue, a GGUF
file, a config.json). Pure values; knows nothing of machines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shoal.core.specs import LayerRange


@dataclass(frozen=True, slots=True)
class LayerDemand:
    """One layer. Bytes are as quantised.

    trunk_*: what every token uses (attention, router, shared experts, norms), read once a step.
    expert_*: one routed expert; num_experts 0 where the layer is dense. expert_row_values: values
    of the row that an expert takes and gives. kv_bytes_per_token: growth of a sequence's cache;
    kv_window_tokens: it stops growing there (None: never). kv_read_tokens: at most this many
    cached tokens are read for one token (None: all held). index_bytes_per_token: further growth that is
    always read whole (it says which tokens to read). fixed_bytes: cache of a sequence whatever its
    length. state_bytes: the same, read and written for every token. attention_ops_per_cached_token:
    for one new token.
    """

    trunk_bytes: int
    trunk_parameters: int
    expert_bytes: int = 0
    expert_parameters: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_row_values: int = 0
    kv_bytes_per_token: float = 0.0
    kv_window_tokens: int | None = None
    kv_read_tokens: int | None = None
    index_bytes_per_token: float = 0.0
    fixed_bytes: int = 0
    state_bytes: int = 0
    attention_ops_per_cached_token: float = 0.0

    @property
    def weight_bytes(self) -> int:
        return self.trunk_bytes + self.num_experts * self.expert_bytes

    @property
    def parameters(self) -> int:
        return self.trunk_parameters + self.num_experts * self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token multiplies with."""
        return self.trunk_parameters + self.experts_per_token * self.expert_parameters

    @property
    def active_bytes(self) -> int:
        """Weight bytes that one token alone has read."""
        return self.trunk_bytes + self.experts_per_token * self.expert_bytes

    def kv_bytes(self, context_tokens: int) -> float:
        """Bytes that a sequence of `context_tokens` holds in this layer."""
        held = context_tokens if self.kv_window_tokens is None else min(context_tokens, self.kv_window_tokens)
        index = context_tokens * self.index_bytes_per_token
        return held * self.kv_bytes_per_token + index + self.fixed_bytes + self.state_bytes

    def tokens_read(self, context_tokens: int) -> int:
        """Cached tokens that one new token attends to."""
        bounds = [context_tokens, self.kv_window_tokens, self.kv_read_tokens]
        return min(bound for bound in bounds if bound is not None)


@dataclass(frozen=True, slots=True)
class SliceDemand:
    """Layers `[start, end)`, equal layers counted together so that a step costs a few sums.

    embedding_bytes: held by the first slice, of which a token reads one row. head_*: of the last
    slice, read once a step that samples.
    """

    layers: LayerRange
    kinds: tuple[tuple[LayerDemand, int], ...]
    embedding_bytes: int
    head_bytes: int
    head_parameters: int

    @property
    def weight_bytes(self) -> int:
        body = sum(count * layer.weight_bytes for layer, count in self.kinds)
        return body + self.embedding_bytes + self.head_bytes

    def kv_bytes(self, context_tokens: int) -> float:
        """Bytes that one sequence of `context_tokens` holds on this slice."""
        return sum(count * layer.kv_bytes(context_tokens) for layer, count in self.kinds)


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A whole model at one quantisation.

    row_values: width of the residual row. boundary_values: for each cut, before layer 1 up to
    before the last one, the values that cross it a token (Kimi K3 and DeepSeek V4 ship more than
    one row). embedding_*: looked up by token, held by the first slice. tied_*: the part of the
    embedding that is also the head, so that one file has it once, but a cut model at both ends.
    trained_context_tokens: the longest context it was made for. notes: what the figures leave out.
    """

    name: str
    quantisation: str
    layers: tuple[LayerDemand, ...]
    row_values: int
    boundary_values: tuple[int, ...]
    embedding_bytes: int
    embedding_parameters: int
    head_bytes: int
    head_parameters: int
    tied_bytes: int
    tied_parameters: int
    trained_context_tokens: int
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def weight_bytes(self) -> int:
        """Of the model's file: a tied table counts once."""
        body = sum(layer.weight_bytes for layer in self.layers)
        return body + self.embedding_bytes + self.head_bytes - self.tied_bytes

    @property
    def parameters(self) -> int:
        body = sum(layer.parameters for layer in self.layers)
        return body + self.embedding_parameters + self.head_parameters - self.tied_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token multiplies with; the embedding is looked up, not multiplied."""
        return sum(layer.active_parameters for layer in self.layers) + self.head_parameters

    @property
    def active_bytes(self) -> int:
        """Weight bytes read for one token of one stream."""
        return sum(layer.active_bytes for layer in self.layers) + self.head_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Growth of the cache beyond every window."""
        return sum(
            layer.index_bytes_per_token + (layer.kv_bytes_per_token if layer.kv_window_tokens is None else 0)
            for layer in self.layers
        )

    @property
    def state_bytes(self) -> int:
        """Of one sequence, whatever its length (windows that are full not counted)."""
        return sum(layer.state_bytes for layer in self.layers)

    def kv_bytes(self, context_tokens: int) -> float:
        """Cache, windows and state of one sequence of `context_tokens`."""
        return sum(layer.kv_bytes(context_tokens) for layer in self.layers)

    def payload_bytes(self, cut: int, *, bytes_per_value: int) -> int:
        """What crosses the cut before layer `cut` for one token. bytes_per_value: 2 at f16, 4 at f32."""
        return self.boundary_values[cut - 1] * bytes_per_value

    def slice_demand(self, layers: LayerRange) -> SliceDemand:
        """The figures of `layers`; the first slice holds the embedding table, the last the head."""
        is_first, is_last = layers.start == 0, layers.end == self.num_layers
        # A tied table is held once where one machine has both ends.
        tied_bytes = self.tied_bytes if is_last else 0
        return SliceDemand(
            layers=layers,
            kinds=tuple(Counter(self.layers[layers.start : layers.end]).items()),
            embedding_bytes=self.embedding_bytes - tied_bytes if is_first else 0,
            head_bytes=self.head_bytes if is_last else 0,
            head_parameters=self.head_parameters if is_last else 0,
        )

    @property
    def whole(self) -> SliceDemand:
        return self.slice_demand(LayerRange(0, self.num_layers))
