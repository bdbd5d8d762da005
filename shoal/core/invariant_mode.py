"""Numbers of invariant mode that engines, scheduler and planning share. docs/MODES.md says what it is.

A sequence has a cache of its own there, as long as the context, so that memory for all of them is
taken at the start; keys and values are Q8_0 instead of F16.
"""

from __future__ import annotations

from typing import Final

TILED_ROWS: Final = 8
"""From this many rows on llama.cpp tiles products with K and IQ weights. Tokens of prompts are
always computed with so many rows, tokens of answers with fewer (engine/invariance.py)."""

Q8_0_PER_F16: Final = 34 / 64  # bytes: blocks of 32 values take 32 + 2, at 2 a value before
_CELL_STEP: Final = 256  # llama.cpp rounds the cells of a sequence up to it


def cells_of_a_sequence(n_ctx: int) -> int:
    """Cells of one sequence's own cache: room for its tokens and for the repetitions behind the
    last one that fill up a batch, rounded up as llama.cpp does."""
    return (n_ctx + TILED_ROWS - 1 + _CELL_STEP - 1) // _CELL_STEP * _CELL_STEP
