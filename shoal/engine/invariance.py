"""Invariant mode's rules: what a row's bits may not depend on, and how llama.cpp is held to it.

A row must come out the same whatever it is computed with. llama.cpp chooses among kernels by the
number of rows in a batch, and they round differently. Read in the source that llama-cpp-python
0.3.36 is built from, for x86-64; each rule has a test that fails without it
(tests/agreement/test_invariant_mode.py):

- Weights of LONE_ROW_KINDS: two and more rows go through llamafile's kernels, a lone row does not
  (ggml-cpu/llamafile/sgemm.cpp, `n < 2`). A lone token is computed twice: `LlamaBatch.pad`.
- Weights of TILED_KINDS: eight and more rows are tiled (ggml-cpu/tiled/tiled.cpp), unless an
  environment variable says no, which is read once, at the first matrix product of the process.
- Repacked weights: rows in fours take another kernel than the rest (ggml-cpu/repack.cpp).
- Attention over F16 keys and values: one row is split over threads from 512 cells on, 64 rows are
  tiled (ggml-cpu/ops.cpp, `use_split_kv_path`, `use_tiled`). Over Q8_0 neither happens.
- One cache for all sequences: a session's tokens land in cells in whatever order these became
  free, and attention sums in the order of cells. So each sequence has a cache of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType as Kind

from shoal.core.errors import InvariantBroken
from shoal.engine.interface import Chunk
from shoal.engine.llama_runtime import LlamaRuntime
from shoal.model.architectures import TOKEN_EMBEDDING
from shoal.model.gguf_file import ModelFile

LONE_ROW_KINDS: Final = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_0, Kind.IQ4_NL}
)
TILED_KINDS: Final = frozenset(
    {Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS, Kind.IQ3_XXS, Kind.IQ3_S}
    | {Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ1_S, Kind.IQ1_M}
)
_TILED_SWITCH: Final = "GGML_CPU_TILED_MM"


def matrix_kinds(slice_path: Path, *, is_last: bool) -> frozenset[Kind]:
    """The kinds of the weights that rows are multiplied with. Raises ModelFileError."""
    return frozenset(
        tensor.kind
        for tensor in ModelFile(slice_path).tensors.values()
        # Only the last slice multiplies with its embedding, which is the head there.
        if len(tensor.dims) > 1 and (is_last or tensor.name != TOKEN_EMBEDDING)
    )


def use_plain_products(runtime: LlamaRuntime, kinds: frozenset[Kind]) -> None:
    """Switch llama.cpp's tiled products off in this process, where the weights would meet them.

    Raises InvariantBroken when the process may have computed with them already.
    """
    if not kinds & TILED_KINDS:
        return
    if runtime.chose_tiled:
        raise InvariantBroken(
            "This process has loaded a slice in default mode: llama.cpp's choice of kernels cannot "
            "be changed any more.",
            next_step="Load slices of invariant mode in a process of their own.",
        )
    os.environ[_TILED_SWITCH] = "0"


def one_graph_batches(chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
    """Cut a batch where llama.cpp would: a chunk of several tokens alone, single tokens together
    as long as each is of the next higher sequence (llama-batch.cpp, `split_equal`)."""
    batches: list[list[Chunk]] = []
    for chunk in chunks:
        last = batches[-1][-1] if batches else None
        if last is not None and len(last.tokens) == len(chunk.tokens) == 1 and chunk.seq == last.seq + 1:
            batches[-1].append(chunk)
        else:
            batches.append([chunk])
    return list(batches)
