"""Invariant mode's rules: what a row's bits may depend on, and how llama.cpp is held to it.

A token must come out the same whatever it is computed with; only whether it belongs to its prompt
or to its answer may matter, since that is the same each time. But llama.cpp chooses among kernels by
the number of rows in a batch, and they round differently. Read in the source that llama-cpp-python
0.3.36 is built from, for x86-64; each rule has a test that fails without it
(tests/agreement/test_invariant_mode.py):

- Weights of LONE_ROW_KINDS: two and more rows go through llamafile's kernels, a lone row does not
  (ggml-cpu/llamafile/sgemm.cpp, `n < 2`). So no row is ever alone: see `LlamaBatch.pad`.
- Weights of TILED_KINDS: eight and more rows are tiled (ggml-cpu/tiled/tiled.cpp), which is much
  faster for prompts and much slower for single tokens. So prompts are always computed in eight
  rows or more and answers in fewer. Of a mixture's experts each gets as many rows as the router
  sends it: there tiling is switched off, by an environment variable that is read once, at the
  first product of the process.
- Shoal's own row kernels (engine/row_kernels.py) give a row the bits that llama.cpp gives a lone one,
  whatever it is computed with. They take up to seven rows then, the rest is tiled.
- Repacked weights: rows in fours take another kernel than the rest (ggml-cpu/repack.cpp). So weights
  are not repacked.
- Attention over F16 keys and values: one row is split over threads from 512 cells on, 64 rows are
  tiled (ggml-cpu/ops.cpp, `use_split_kv_path`, `use_tiled`). Over Q8_0 neither happens.
- One cache for all sequences: a session's tokens land in cells in whatever order these became
  free, and attention sums in the order of cells. So each sequence has a cache of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType as Kind

from shoal.core.errors import InvariantBroken
from shoal.core.invariant_mode import TILED_ROWS
from shoal.engine.llama_runtime import LlamaRuntime
from shoal.engine.matrices import multiplied_matrices

LONE_ROW_KINDS: Final = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_0, Kind.IQ4_NL}
)
TILED_KINDS: Final = frozenset(
    {Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS, Kind.IQ3_XXS, Kind.IQ3_S}
    | {Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ1_S, Kind.IQ1_M}
)
_TILED_SWITCH: Final = "GGML_CPU_TILED_MM"


@dataclass(frozen=True, slots=True)
class MatrixKinds:
    """Of the weights that rows are multiplied with: those of a mixture's experts, and all others."""

    experts: frozenset[Kind]
    others: frozenset[Kind]

    @property
    def tiles_experts(self) -> bool:
        return bool(self.experts & TILED_KINDS)


@dataclass(frozen=True, slots=True)
class RowRules:
    """How many rows a batch must have (pieces.py makes such batches). prompt_least: of a prompt's
    chunk. least, most: of tokens of answers. The outputs of the last slice are `least` or more too."""

    prompt_least: int = 1
    least: int = 1
    most: int | None = None


def matrix_kinds(slice_path: Path, *, is_last: bool) -> MatrixKinds:
    """Read a slice's header. Raises ModelFileError."""
    experts: set[Kind] = set()
    others: set[Kind] = set()
    for tensor in multiplied_matrices(slice_path, is_last=is_last):
        (experts if len(tensor.dims) > 2 else others).add(tensor.kind)
    return MatrixKinds(frozenset(experts), frozenset(others))


def row_rules(kinds: MatrixKinds) -> RowRules:
    """What batches a slice with such weights must be given."""
    least = 2 if kinds.others & LONE_ROW_KINDS else 1
    if not kinds.others & TILED_KINDS or kinds.tiles_experts:
        return RowRules(least, least)
    return RowRules(TILED_ROWS, least, TILED_ROWS - 1)


def switch_tiling_off(runtime: LlamaRuntime) -> None:
    """For this process, for good.

    Raises InvariantBroken when the process may have computed with tiled products already.
    """
    if runtime.may_have_tiled:
        raise InvariantBroken(
            "This process has loaded a slice whose products may be tiled: that cannot be changed any more.",
            next_step="Load a mixture's slices of invariant mode in a process of their own.",
        )
    os.environ[_TILED_SWITCH] = "0"
