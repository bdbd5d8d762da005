"""Which architectures can be cut, and what each needs re-based: one small rule object for each.

Owns the allow-list. A rule says where its models may be cut, which metadata a slice must change and
which tensors every slice carries; the slicer follows it and knows no architecture by name. An
architecture that is not listed is refused, because most cutting mistakes are silent: the slices
load, and compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import Final

from shoal.core.errors import UnsupportedModel
from shoal.core.specs import LayerRange
from shoal.model.gguf_encoding import encode_bools, encode_integer, sliced_array
from shoal.model.gguf_file import ModelFile

TOKEN_EMBEDDING: Final = "token_embd.weight"
OUTPUT_NORM: Final = "output_norm.weight"
OUTPUT_HEAD: Final = "output.weight"

# Keys whose arrays hold one entry a layer: llama.cpp demands exactly as many as there are blocks,
# except for the sliding-window pattern, where a wrong length is silent.
PER_LAYER_KEYS: Final = (
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_used_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
)

# Keys that would change what a slice computes in a way that no rule here accounts for.
REFUSED_KEYS: Final = ("nextn_predict_layers", "embedding_scale")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides where it may be cut. is_sliding: of each layer, all False where the
    model has no sliding window."""

    num_layers: int
    is_sliding: tuple[bool, ...]

    @property
    def has_window(self) -> bool:
        return any(self.is_sliding)


@dataclass(frozen=True, slots=True)
class ArchitectureRule:
    """The plain case: any cut, nothing to re-base but arrays with one entry a layer.

    carried_tensors: tensors outside the blocks that every slice must carry where the model has
    them. needs_output_weight: llama.cpp cannot tie this architecture's head to the embedding.
    """

    name: str
    carried_tensors: frozenset[str] = frozenset()
    needs_output_weight: bool = False

    def shape(self, model: ModelFile) -> ModelShape:
        num_layers = self.num_layers(model)
        return ModelShape(num_layers, (False,) * num_layers)

    def num_layers(self, model: ModelFile) -> int:
        num_layers = model.integer(f"{self.name}.block_count")
        if not 1 <= num_layers <= len(model.tensors):
            raise model.error(f"it claims {num_layers} layers and has {len(model.tensors)} tensors")
        return num_layers

    def why_illegal(self, shape: ModelShape, layers: LayerRange) -> str | None:
        """Why `layers` cannot be a slice of its own; None where it can."""
        if not 0 <= layers.start < layers.end <= shape.num_layers:
            return (
                f"a slice of this model is a range [start, end) with 0 <= start < end <= {shape.num_layers}"
            )
        return None

    def metadata_edits(self, model: ModelFile, layers: LayerRange) -> dict[str, bytes]:
        """Encoded values that replace those of the model in the slice `layers`."""
        edits = {f"{self.name}.block_count": encode_integer(layers.num_layers)}
        num_layers = self.num_layers(model)
        for suffix in PER_LAYER_KEYS:
            key = f"{self.name}.{suffix}"
            array = model.numbers(key)
            if array is None:
                continue
            if len(array) != num_layers:
                raise model.error(
                    f"the metadata key {key!r} has {len(array)} entries for {num_layers} layers"
                )
            edits[key] = sliced_array(model, key, layers.start, layers.end)
        return edits

    def tensor_factor(self, model: ModelFile, layers: LayerRange, suffix: str) -> float:
        """What a block's tensor must be multiplied by in this slice (`suffix` follows `blk.N.`)."""
        return 1.0

    def embedding_factor(self, n_embd: int) -> float:
        """What token rows are multiplied by before the first layer."""
        return 1.0

    def row_width(self, n_embd: int, boundary: int) -> int:
        """Floats of one boundary row at layer `boundary`: a property of the cut, not of the model."""
        return n_embd

    def boundary_tensor(self, num_layers: int) -> str:
        """The graph node that leaves a slice of `num_layers` layers."""
        return f"l_out-{num_layers - 1}"


@dataclass(frozen=True, slots=True)
class SlidingWindowRule(ArchitectureRule):
    """Layers that see only a window, every `default_period`th one seeing everything.

    llama.cpp counts the period from layer 0 of the file, so a slice must state its own pattern:
    left out, it would be silently wrong, and only for prompts longer than the window.
    """

    default_period: int = 1

    def shape(self, model: ModelFile) -> ModelShape:
        num_layers = self.num_layers(model)
        if model.integer(f"{self.name}.attention.sliding_window", 0) == 0:
            return ModelShape(num_layers, (False,) * num_layers)
        key = f"{self.name}.attention.sliding_window_pattern"
        array = model.numbers(key)
        if array is not None:
            if len(array) != num_layers:
                raise model.error(
                    f"the metadata key {key!r} has {len(array)} entries for {num_layers} layers"
                )
            return ModelShape(num_layers, tuple(bool(entry) for entry in array.tolist()))
        period = model.integer(key, self.default_period)
        if period == 0:
            return ModelShape(num_layers, (True,) * num_layers)
        return ModelShape(num_layers, tuple(layer % period < period - 1 for layer in range(num_layers)))

    def why_illegal(self, shape: ModelShape, layers: LayerRange) -> str | None:
        why = ArchitectureRule.why_illegal(self, shape, layers)
        if why is not None or not shape.has_window:
            return why
        if not any(shape.is_sliding[layers.start : layers.end]):
            return (
                f"layers {layers} all see the whole context, and llama.cpp loads a {self.name} slice only "
                "if at least one of its layers has a sliding window"
            )
        return None

    def metadata_edits(self, model: ModelFile, layers: LayerRange) -> dict[str, bytes]:
        edits = ArchitectureRule.metadata_edits(self, model, layers)
        shape = self.shape(model)
        if shape.has_window:
            pattern = shape.is_sliding[layers.start : layers.end]
            edits[f"{self.name}.attention.sliding_window_pattern"] = encode_bools(pattern)
        return edits


@dataclass(frozen=True, slots=True)
class Gemma3Rule(SlidingWindowRule):
    """Gemma 3: token rows are scaled by sqrt(n_embd), and the 27B model has a query scale of its own.

    llama.cpp knows the 27B model by its 62 layers, so a slice of it would get the others' scale;
    the ratio is folded into the norm of the queries, which leaves a rounding of about 1e-3.
    """

    layers_of_27b: int = 62

    def embedding_factor(self, n_embd: int) -> float:
        return sqrt(n_embd)

    def tensor_factor(self, model: ModelFile, layers: LayerRange, suffix: str) -> float:
        if suffix != "attn_q_norm.weight":
            return 1.0
        wanted = self._query_scale(model, self.num_layers(model))
        applied = self._query_scale(model, layers.num_layers)
        return wanted / applied

    def _query_scale(self, model: ModelFile, num_layers: int) -> float:
        n_embd = model.integer("gemma3.embedding_length")
        n_head = model.integer("gemma3.attention.head_count")
        if num_layers == self.layers_of_27b:
            return 1 / sqrt(n_embd / n_head)
        return 1 / sqrt(model.integer("gemma3.attention.key_length", n_embd // n_head))


RULES: Final[Mapping[str, ArchitectureRule]] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            ArchitectureRule(
                "llama",
                frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}),
            ),
            ArchitectureRule("qwen2"),
            ArchitectureRule("qwen3"),
            ArchitectureRule("qwen3moe"),
            Gemma3Rule("gemma3", default_period=6),
        )
    }
)

_SEVERAL_STREAMS: Final = (
    "more than one residual stream runs between its layers, "
    "and llama.cpp as it is takes only one into a slice"
)

# Known, and impossible with unmodified llama.cpp.
IMPOSSIBLE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kimi-k3": _SEVERAL_STREAMS,
        "deepseek4": _SEVERAL_STREAMS,
        "glm5-next": _SEVERAL_STREAMS,
        "gemma3n": _SEVERAL_STREAMS,
        "gemma4": f"in its E2B and E4B models {_SEVERAL_STREAMS}; for the others there is no rule here yet",
        "rwkv7": "its layers also read a value of the first layer, which llama.cpp takes into no slice",
    }
)


def rule_for(model: ModelFile) -> ArchitectureRule:
    """The rule for this model file. Raises UnsupportedModel, naming what is missing."""
    architecture = model.text("general.architecture")
    _refuse_other_kinds(model, architecture)
    rule = RULES.get(architecture)
    if rule is None:
        reason = IMPOSSIBLE.get(
            architecture,
            "there is no cutting rule for it yet, and guessing one gives wrong text without an error",
        )
        raise UnsupportedModel(
            f"{model.path} has the architecture {architecture!r}, which cannot be cut: {reason}.",
            next_step=f"Architectures that can be cut: {', '.join(sorted(RULES))}.",
        )
    _refuse_unknown_parts(model, rule)
    return rule


def _refuse_other_kinds(model: ModelFile, architecture: str) -> None:
    num_files = model.integer("split.count", 0)
    if num_files > 1:
        raise UnsupportedModel(
            f"{model.path} is part {model.integer('split.no', 0) + 1} of a model split into {num_files} "
            "files, and reading split models is not built yet.",
            next_step="Join the parts first: llama-gguf-split --merge FIRST_PART OUT.gguf",
        )
    if "shoal.layer_start" in model.fields:
        raise UnsupportedModel(
            f"{model.path} is itself a slice of a model, and a slice cannot be cut again.",
            next_step="Give the model file that it was cut from.",
        )
    kind = model.get("general.type")
    if kind not in (None, "model"):
        raise UnsupportedModel(
            f"{model.path} holds a {kind!r} of the architecture {architecture!r}, not a language model.",
            next_step="Give the file with the language model itself.",
        )


def _refuse_unknown_parts(model: ModelFile, rule: ArchitectureRule) -> None:
    known = {TOKEN_EMBEDDING, OUTPUT_NORM, OUTPUT_HEAD, *rule.carried_tensors}
    strange = [name for name in model.tensors if not name.startswith("blk.") and name not in known]
    strange += [key for key in (f"{rule.name}.{suffix}" for suffix in REFUSED_KEYS) if key in model.fields]
    strange += [key for key in model.fields if key.startswith("general.tensor_extra.")]
    if strange:
        raise UnsupportedModel(
            f"{model.path} is a {rule.name} model with parts that its cutting rule does not know: "
            f"{', '.join(strange[:5])}.",
            next_step="Use a plain conversion of the model, without extra heads or per-tensor options.",
        )
