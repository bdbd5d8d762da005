"""What one text's logits are, computed by this many slices in chunks of that length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from shoal.engine.interface import Chunk, Draw
from tests.support.greedy_runs import GREEDY, chunked
from tests.support.slice_chain import SliceChain, even_cuts

Digests = dict[int, bytes]
"""Of logits, by the number of tokens before them."""


@dataclass(frozen=True)
class Run:
    """Picklable, for a process of its own."""

    path: Path
    folder: Path
    num_layers: int
    text: Sequence[int]
    invariant: bool = True

    def digests(self, num_slices: int, lengths: Sequence[int], threads: int = 1) -> dict[int, Digests]:
        """Of the logits behind each chunk, by chunk length; the last chunk is what remains."""
        with SliceChain(
            self.path,
            even_cuts(self.num_layers, num_slices),
            self.folder,
            cells=len(self.text),
            max_batch_tokens=64,
            invariant=self.invariant,
            threads=threads,
        ) as chain:
            return {length: _digests(chain, self.text, length) for length in lengths}


def differing(run: Run, slices: Sequence[int], lengths: Sequence[int], threads: int = 1) -> list[str]:
    """Where slices and chunks give other bits than one token at a time through the whole model."""
    singles = run.digests(1, [1])[1]
    assert len(singles) == len(run.text)
    assert len(set(singles.values())) == len(run.text), "a model that ignores its input proves nothing"
    return [
        f"{num_slices} slices, chunks of {length}, logits behind {at} tokens"
        for num_slices in slices
        for length, digests in run.digests(num_slices, lengths, threads).items()
        for at, digest in digests.items()
        if digest != singles[at]
    ]


def _digests(chain: SliceChain, text: Sequence[int], length: int) -> Digests:
    digests: Digests = {}
    for start, tokens in chunked(list(text), length):
        end = start + len(tokens)
        chain.compute([Chunk(0, start, tokens, Draw(GREEDY, end, ()))])
        digests[end] = blake2b(chain.last.logits(len(tokens) - 1).tobytes()).digest()
    for engine in chain.engines:
        engine.clear(0)
    return digests
