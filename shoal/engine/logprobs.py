"""How likely a row of logits holds its tokens. Pure; computed only for sessions that ask."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shoal.core.sequence import Logprobs


def logprobs_of(logits: NDArray[np.float32], token: int, num_top: int) -> Logprobs:
    """Logprobs of `token` and of the `num_top` likeliest tokens.

    logits: float32 [n_vocab], finite, as the model has them. log softmax: logit minus the
    logarithm of the sum of all exponentials. Always finite, as the highest is taken off first.
    """
    highest = logits.max()
    with np.errstate(over="ignore", under="ignore"):
        # Exponentials in float32, which numpy vectorises; their sum must not lose the small ones.
        total = float(np.exp(logits - highest).sum(dtype=np.float64))
    log_total = float(highest) + math.log(total)
    top = _likeliest(logits, min(num_top, len(logits)))
    return Logprobs(
        float(logits[token]) - log_total, tuple((int(t), float(logits[t]) - log_total) for t in top)
    )


def _likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the highest, best first, the lowest id on a tie."""
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    # All that tie with the last one take part, so that ids decide and not the partition's order.
    ids = np.flatnonzero(logits >= least)
    best: NDArray[np.int64] = ids[np.argsort(-logits[ids], kind="stable")][:count]
    return best
