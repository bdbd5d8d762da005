"""Picking one token from a row of logits.

A pure function of (logits, parameters, seed, position, tokens so far): nothing is carried from
token to token, so that a stage that takes over in mid-answer draws what the lost one would have
drawn. The filters are llama.cpp's samplers, in its order; bias, penalties, temperature and the
draw are ours. Called by engines on the last slice; knows nothing of sequences or caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import EngineError, InvariantBroken
from shoal.core.sequence import SamplingParams
from shoal.engine.adjusted_logits import adjusted
from shoal.engine.interface import Draw, Drawn
from shoal.engine.llama_library import llama_cpp
from shoal.engine.logprobs import logprobs_of

_BLOCK = 1024
_LEAST_TEMPERATURE = 1e-30  # float32 can still divide by it; a draw is greedy far above

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""The memory layout of llama.cpp's `llama_token_data`."""


def pick(logits: NDArray[np.float32], draw: Draw) -> Drawn:
    """Pick the token at `draw.position`, with its logprobs where asked for. See `draw_token`."""
    token, num_top = draw_token(logits, draw), draw.params.top_logprobs
    return Drawn(token, None if num_top is None else logprobs_of(logits, token, num_top))


def draw_token(logits: NDArray[np.float32], draw: Draw) -> int:
    """Pick the token at `draw.position`.

    logits: float32 [n_vocab], left unchanged. They are `adjusted` first. Then temperature 0 takes
    the highest, the lowest id on a tie. Otherwise top_k, top_p and min_p filter in this order, what
    is left is weighed by softmax(logit / temperature), and `uniform` picks among it in ascending
    order of ids.
    Raises EngineError when a logit is NaN or infinite, InvariantBroken on parameters that the
    door should have refused.
    """
    params = draw.params
    _check(logits, params)
    logits = adjusted(logits, draw)
    if params.temperature == 0:
        return int(logits.argmax())
    ids, kept = _filter(logits, params)
    # Subtracting first keeps the largest weight at 1 whatever the temperature: llama.cpp's own
    # sampler divides first, which overflows below about 1e-37.
    with np.errstate(over="ignore", under="ignore"):
        weights = np.subtract(kept, kept.max())
        weights /= np.float32(max(params.temperature, _LEAST_TEMPERATURE))
        np.exp(weights, out=weights)
    picked = index_at(weights, uniform(params.seed, draw.position))
    return picked if ids is None else int(ids[picked])


def index_at(weights: NDArray[np.float32], share: float) -> int:
    """The index at which the running sum of `weights` passes `share` of the whole, in [0, 1).

    At least one weight is above 0; one of 0 is never picked. Sums of blocks first: a running sum over
    a whole vocabulary takes ten times as long as all the rest of a draw.
    """
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64))
    target = share * blocks[-1]
    block = _first_above(blocks, target)
    start = block * _BLOCK
    before = blocks[block - 1] if block else 0.0
    within = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    return start + _first_above(within, target - before)


def _first_above(sums: NDArray[np.float64], target: float) -> int:
    """The first of rising `sums` above `target`; the first of the highest where rounding left none."""
    return int(min(np.searchsorted(sums, target, side="right"), np.searchsorted(sums, sums[-1])))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on `seed` (its low 64 bits) and `position` only.

    BLAKE2b of both as little-endian 64-bit numbers; the top 53 bits of its first 8 bytes.
    """
    mask = 2**64 - 1
    keyed = (seed & mask).to_bytes(8, "little") + (position & mask).to_bytes(8, "little")
    return float(int.from_bytes(blake2b(keyed, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def _check(logits: NDArray[np.float32], params: SamplingParams) -> None:
    # NaN passes through min and max, so two passes without a temporary cover all three cases.
    lowest, highest = float(logits.min()), float(logits.max())
    if not (np.isfinite(lowest) and np.isfinite(highest)):
        raise EngineError(
            f"The model's output is not a number (logits from {lowest} to {highest}).",
            next_step="If it happens again, the model file or this machine's memory is damaged.",
        )
    if not params.temperature >= 0 or params.top_k < 0:
        raise InvariantBroken(f"Sampling parameters reached the engine unchecked: {params}.")


def _filter(
    logits: NDArray[np.float32], params: SamplingParams
) -> tuple[NDArray[np.int32] | None, NDArray[np.float32]]:
    """Ids, ascending (None: all of them), and logits of the candidates that pass the filters."""
    top_k = params.top_k if params.top_k < len(logits) else 0
    ids: NDArray[np.int32] | None = None
    if params.logit_bias:
        # Banned ones go first: minus infinity is not for llama.cpp's samplers.
        ids = np.flatnonzero(logits > -np.inf).astype(np.int32)
        logits = logits[ids]
    if not top_k and params.top_p >= 1 and params.min_p <= 0:
        return ids, logits
    candidates = np.empty(len(logits), dtype=_CANDIDATE)
    candidates["id"] = np.arange(len(logits), dtype=np.int32) if ids is None else ids
    candidates["logit"] = logits
    with _chain(top_k, params.top_p, params.min_p) as chain:
        array = llama_cpp.llama_token_data_array(
            data=candidates.ctypes.data_as(llama_cpp.llama_token_data_p),
            size=len(candidates),
            selected=-1,
            sorted=False,
        )
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        # A sampler may leave its result elsewhere than where it found its input.
        left = np.ctypeslib.as_array(array.data, shape=(array.size,)).view(_CANDIDATE).reshape(-1)
        # By id and not by weight: two near-equal weights that swap places would move every
        # boundary between them, while in this order a low-bit difference moves each by a low bit.
        left = left[np.argsort(left["id"])]
    return left["id"], left["logit"]


@contextmanager
def _chain(top_k: int, top_p: float, min_p: float) -> Iterator[int]:
    """llama.cpp's samplers for the filters that are on. Built for each draw: it costs a few
    microseconds, and nothing is shared between threads."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    try:
        if top_k:
            llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_top_k(top_k))
        if top_p < 1:
            llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0:
            llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_min_p(min_p, 1))
        yield chain
    finally:
        llama_cpp.llama_sampler_free(chain)
