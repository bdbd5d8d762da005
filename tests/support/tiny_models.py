"""Small random model files that unmodified llama.cpp loads, one for each architecture.

Owns how such a file is made up; knows nothing of Shoal. The weights are random but scaled so that
layers, not the token embedding, dominate the residual stream: greedy text then varies instead of
repeating the last token, also where the head is tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from numpy.typing import NDArray

Architecture = Literal["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"]
WeightType = Literal["F32", "F16", "Q8_0"]
Tokenizer = Literal["bpe", "spm"]
AddTensor = Callable[..., None]

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3")

# A multiple of 32, the block of Q8_0: tests can then use Q8_0 weights and a Q8_0 cache.
HEAD_DIM = 32

# fmt: off
MERGES = [
    "t h", "h e", "i n", "e r", "a n", "r e", "o n", "a t", "e n", "o r", "e s", "i s", "Ġ t", "Ġ a", "Ġ s",
    "Ġ w", "Ġ c", "Ġ th", "Ġ the", "in g", "an d", "Ġ and", "i t", "o u", "e d", "a l", "l l", "Ġ o", "Ġ b",
    "Ġ i",
]
# fmt: on

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class _Shape:
    architecture: Architecture
    num_layers: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    n_ff: int
    num_experts: int


def write_tiny_model(
    path: Path,
    architecture: Architecture,
    *,
    num_layers: int = 6,
    n_embd: int = 64,
    n_vocab: int = 300,
    seed: int = 0,
    weights: WeightType = "F32",
    tied: bool | None = None,
    tokenizer: Tokenizer | None = None,
    n_ctx: int = 2048,
    sliding_window: int = 16,
    num_experts: int = 4,
    name: str | None = None,
) -> Path:
    """Write a random model to `path` and return it. The same arguments give the same bytes.

    tied: no `output.weight`, the head is the embedding; by default gemma3 only. tokenizer: "bpe"
    (256 byte symbols, a few merges, ChatML control tokens and template) or "spm" (byte pieces and
    letters, the same control tokens); by default "spm" for gemma3, "bpe" for the others.
    sliding_window: of gemma3. n_vocab: at least 300.
    """
    # llama and qwen2 derive the head's width from n_embd; the others state it.
    states_head_dim = architecture in ("qwen3", "qwen3moe", "gemma3")
    n_head = 4 if states_head_dim else n_embd // HEAD_DIM
    shape = _Shape(
        architecture=architecture,
        num_layers=num_layers,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_head=n_head,
        n_head_kv=max(1, n_head // 2),
        n_ff=96,
        num_experts=num_experts if architecture == "qwen3moe" else 0,
    )
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name or f"tiny-{architecture}")
    _add_hyperparameters(writer, shape, n_ctx=n_ctx, sliding_window=sliding_window)
    kind = tokenizer or ("spm" if architecture == "gemma3" else "bpe")
    (_add_bpe_tokenizer if kind == "bpe" else _add_spm_tokenizer)(writer, n_vocab)
    is_tied = architecture == "gemma3" if tied is None else tied
    _add_tensors(writer, shape, np.random.default_rng(seed), weights, is_tied)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_hyperparameters(writer: gguf.GGUFWriter, shape: _Shape, *, n_ctx: int, sliding_window: int) -> None:
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if shape.architecture in ("qwen3", "qwen3moe", "gemma3"):
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    if shape.architecture == "llama":
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_vocab_size(shape.n_vocab)
    if shape.architecture == "gemma3":
        writer.add_sliding_window(sliding_window)
    if shape.num_experts:
        writer.add_expert_count(shape.num_experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(32)


# ---------------------------------------------------------------- tokenizers


def byte_alphabet() -> list[str]:
    """The 256 printable symbols that a byte-level BPE vocabulary writes bytes with."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    symbols |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]


def _add_bpe_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    endoftext = len(tokens)
    tokens, types = _pad(tokens + control, types + [gguf.TokenType.CONTROL] * len(control), n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(endoftext)
    writer.add_eos_token_id(endoftext + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_spm_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    tokens = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 4
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [gguf.TokenType.BYTE] * 256
    tokens += ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    types += [gguf.TokenType.NORMAL] * 27
    tokens, types = _pad(tokens, types, n_vocab)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(4)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _pad(
    tokens: list[str], types: list[gguf.TokenType], n_vocab: int
) -> tuple[list[str], list[gguf.TokenType]]:
    if n_vocab < len(tokens):
        raise ValueError(f"n_vocab must be at least {len(tokens)}, not {n_vocab}")
    missing = n_vocab - len(tokens)
    filler = [f"<|unused_{index}|>" for index in range(missing)]
    return tokens + filler, types + [gguf.TokenType.UNUSED] * missing


# ---------------------------------------------------------------- tensors


def _add_tensors(
    writer: gguf.GGUFWriter, shape: _Shape, random: np.random.Generator, weights: WeightType, tied: bool
) -> None:
    quantisation = gguf.GGMLQuantizationType[weights]

    def add_matrix(name: str, *dims: int, gain: float = 1.0) -> None:
        values = random.standard_normal(dims, dtype=np.float32) * np.float32(gain / np.sqrt(dims[-1]))
        if quantisation is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, quantisation), raw_dtype=quantisation)

    def add_vector(name: str, width: int, *, centre: float, spread: float = 0.1) -> None:
        writer.add_tensor(name, _vector(random, width, centre, spread))

    # A small embedding keeps the current token's own logit from winning every time.
    add_matrix("token_embd.weight", shape.n_vocab, shape.n_embd, gain=0.8)
    if not tied:
        add_matrix("output.weight", shape.n_vocab, shape.n_embd, gain=4.0)
    # A tied head is small, so its logits are spread by the norm before it.
    add_vector("output_norm.weight", shape.n_embd, centre=4.0 if tied else 1.0)
    if shape.architecture == "llama":
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32))
    for layer in range(shape.num_layers):
        block = f"blk.{layer}"
        _add_attention(block, shape, add_matrix, add_vector)
        _add_feed_forward(block, shape, writer, random, add_matrix, add_vector)


def _add_attention(block: str, shape: _Shape, add_matrix: AddTensor, add_vector: AddTensor) -> None:
    q_width, kv_width = shape.n_head * HEAD_DIM, shape.n_head_kv * HEAD_DIM
    add_vector(f"{block}.attn_norm.weight", shape.n_embd, centre=1.0)
    add_matrix(f"{block}.attn_q.weight", q_width, shape.n_embd, gain=1.5)
    add_matrix(f"{block}.attn_k.weight", kv_width, shape.n_embd, gain=1.5)
    add_matrix(f"{block}.attn_v.weight", kv_width, shape.n_embd)
    add_matrix(f"{block}.attn_output.weight", shape.n_embd, q_width, gain=2.0)
    if shape.architecture == "qwen2":
        add_vector(f"{block}.attn_q.bias", q_width, centre=0.0)
        add_vector(f"{block}.attn_k.bias", kv_width, centre=0.0)
        add_vector(f"{block}.attn_v.bias", kv_width, centre=0.0)
    if shape.architecture in ("qwen3", "qwen3moe", "gemma3"):
        add_vector(f"{block}.attn_q_norm.weight", HEAD_DIM, centre=1.5)
        add_vector(f"{block}.attn_k_norm.weight", HEAD_DIM, centre=1.5)
    if shape.architecture == "gemma3":
        add_vector(f"{block}.post_attention_norm.weight", shape.n_embd, centre=2.0)


def _add_feed_forward(
    block: str,
    shape: _Shape,
    writer: gguf.GGUFWriter,
    random: np.random.Generator,
    add_matrix: AddTensor,
    add_vector: AddTensor,
) -> None:
    add_vector(f"{block}.ffn_norm.weight", shape.n_embd, centre=1.0)
    if shape.num_experts:
        experts, width = shape.num_experts, 32
        # The router stays F32, as in real files.
        router = random.standard_normal((experts, shape.n_embd), dtype=np.float32) / np.float32(8)
        writer.add_tensor(f"{block}.ffn_gate_inp.weight", router)
        add_matrix(f"{block}.ffn_gate_exps.weight", experts, width, shape.n_embd, gain=2.0)
        add_matrix(f"{block}.ffn_up_exps.weight", experts, width, shape.n_embd, gain=2.0)
        add_matrix(f"{block}.ffn_down_exps.weight", experts, shape.n_embd, width, gain=2.0)
    else:
        add_matrix(f"{block}.ffn_gate.weight", shape.n_ff, shape.n_embd, gain=2.0)
        add_matrix(f"{block}.ffn_up.weight", shape.n_ff, shape.n_embd, gain=2.0)
        add_matrix(f"{block}.ffn_down.weight", shape.n_embd, shape.n_ff, gain=2.0)
    if shape.architecture == "gemma3":
        add_vector(f"{block}.post_ffw_norm.weight", shape.n_embd, centre=2.0)


def _vector(random: np.random.Generator, width: int, centre: float, spread: float) -> NDArray[np.float32]:
    noise = random.standard_normal(width, dtype=np.float32)
    return np.float32(centre) + np.float32(spread) * noise
