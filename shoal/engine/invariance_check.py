"""Does this machine keep invariant mode's promise? Asked of every slice when it is loaded.

The rules in engine/invariance.py were read for one build of llama.cpp on x86-64. Another CPU, or a
build with a matrix library of its own, may choose kernels by other numbers of rows. That cannot be
seen from outside, but it can be tried, with the weights at hand, in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import ConfigError
from shoal.engine.interface import Rows

# Lone tokens and longer and longer chunks; 33 in all, as from 32 rows on llama.cpp may hand products
# to another backend.
LENGTHS: Final = (1, 2, 1, 4, 1, 8, 1, 14, 1)

Compute = Callable[[Rows, Sequence[int]], NDArray[np.float32]]
"""Compute rows in chunks of these lengths on an empty sequence: `[num_tokens, width]` out."""


def check_invariance(compute: Compute, row_width: int, max_tokens: int, layers: str) -> None:
    """Raises ConfigError where rows computed in chunks of LENGTHS are not those computed in one. Uses
    `max_tokens` at most."""
    lengths = [length for end, length in zip(accumulate(LENGTHS), LENGTHS, strict=True) if end <= max_tokens]
    num_tokens = sum(lengths)
    rows = np.random.default_rng(0).standard_normal((num_tokens, row_width), dtype=np.float32)
    if np.array_equal(compute(rows, [num_tokens]), compute(rows, lengths)):
        return
    raise ConfigError(
        f"This machine computes layers {layers} to other bits in chunks of another length, "
        "so it cannot take part in invariant mode.",
        next_step="Serve without --invariant, or without this machine.",
    )
