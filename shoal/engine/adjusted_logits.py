"""What a request changes about a row of logits before a token is picked from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import InvariantBroken
from shoal.core.sequence import BANNED
from shoal.engine.interface import Draw


def adjusted(logits: NDArray[np.float32], draw: Draw) -> NDArray[np.float32]:
    """The logits after bias and penalties; `logits` itself, not a copy, where there are none.

    logit[t] + bias[t] - presence_penalty * (count[t] > 0) - frequency_penalty * count[t], where
    count[t] is how often `draw.generated` has t: OpenAI's formula, over the answer alone. A bias of
    BANNED makes it minus infinity. Raises InvariantBroken where that leaves no token.
    """
    params = draw.params
    has_penalties = params.has_penalties and len(draw.generated) > 0
    if not params.logit_bias and not has_penalties:
        return logits
    changed = logits.copy()
    if params.logit_bias:
        ids, bias = _arrays(params.logit_bias, len(logits))
        changed[ids] += bias
        changed[ids[bias <= BANNED]] = -np.inf
        if changed.max() == -np.inf:
            raise InvariantBroken("A logit_bias that bans every token reached the engine.")
    if has_penalties:
        tokens, counts = np.unique(np.asarray(draw.generated), return_counts=True)
        changed[tokens] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    return changed


def _arrays(
    logit_bias: Sequence[tuple[int, float]], n_vocab: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    tokens, biases = zip(*logit_bias, strict=True)
    ids = np.array(tokens, np.int64)
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise InvariantBroken(f"A logit_bias outside the vocabulary of {n_vocab} reached the engine.")
    return ids, np.array(biases, np.float32)
