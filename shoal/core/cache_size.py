"""How many cells invariant mode's caches have, and what one takes.

There a sequence has a cache of its own, as long as the context, so that memory for all of them is
taken at the start; keys and values are Q8_0 instead of F16.
"""

from __future__ import annotations

from typing import Final

Q8_0_PER_F16: Final = 34 / 64  # bytes: blocks of 32 values take 32 + 2, at 2 a value before
_CELL_STEP: Final = 256  # llama.cpp rounds the cells of a sequence up to it


def cells_of_a_sequence(n_ctx: int) -> int:
    """Cells of one sequence's own cache: one more than its tokens, for the repetition of a lone
    token (engine/invariance.py), and rounded up as llama.cpp does."""
    return (n_ctx + 1 + _CELL_STEP - 1) // _CELL_STEP * _CELL_STEP
