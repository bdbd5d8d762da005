"""What one text's logits are, computed by this many slices in chunks of that length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.interface import Chunk, Draw
from tests.support.greedy_runs import GREEDY, chunked
from tests.support.recording_engine import Drawn, RecordingEngine
from tests.support.slice_chain import SliceChain, even_cuts


@dataclass(frozen=True)
class Run:
    """num_prompt: tokens of `text` that are prompt; the rest is answer, as when it is computed again
    after a loss. Picklable, for a process of its own."""

    path: Path
    folder: Path
    num_layers: int
    text: Sequence[int]
    num_prompt: int
    invariant: bool = True

    def logits(self, num_slices: int, lengths: Sequence[int], threads: int = 1) -> dict[int, Drawn]:
        """Digests of the logits behind each chunk, by chunk length; the last chunk is what remains."""
        with SliceChain(
            self.path,
            even_cuts(self.num_layers, num_slices),
            self.folder,
            cells=len(self.text),
            max_batch_tokens=64,
            invariant=self.invariant,
            threads=threads,
            engine=RecordingEngine,
        ) as chain:
            return {length: self._logits(chain, length) for length in lengths}

    def _logits(self, chain: SliceChain, length: int) -> Drawn:
        last = chain.last
        assert isinstance(last, RecordingEngine)
        last.drawn = {}
        for start, tokens in chunked(list(self.text), length):
            num_prompt = max(0, self.num_prompt - start)
            draw = Draw(GREEDY, start + len(tokens), ())
            chain.compute([Chunk(0, start, tokens, draw, num_prompt=num_prompt)])
        for engine in chain.engines:
            engine.clear(0)
        return last.drawn


def differing(run: Run, slices: Sequence[int], lengths: Sequence[int], threads: int = 1) -> list[str]:
    """Where slices and chunks give other bits than one token at a time through the whole model."""
    singles = run.logits(1, [1])[1]
    assert len(singles) == len(run.text)
    distinct = {digest for digests in singles.values() for digest in digests}
    assert len(distinct) == len(run.text), "a model that ignores its input proves nothing"
    return [
        f"{num_slices} slices, chunks of {length}, logits behind {position} tokens"
        for num_slices in slices
        for length, drawn in run.logits(num_slices, lengths, threads).items()
        for (seed, position), digests in drawn.items()
        if digests != singles[seed, position]
    ]
