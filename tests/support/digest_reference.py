"""What a request must get from digest engines, computed in one piece without any pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.core.sequence import FinishReason, GenerateRequest
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.engine.interface import Chunk, Draw, Drawn
from shoal.pipeline.text_stream import TextStream


class NumberVocabulary:
    """Tokens that print as their number, so that a wrong one is seen at once."""

    def __init__(self, eog_tokens: frozenset[int] = frozenset()) -> None:
        self._eog_tokens = eog_tokens

    @property
    def eog_tokens(self) -> frozenset[int]:
        return self._eog_tokens

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        return f"{token} ".encode()


def digest_answer(
    request: GenerateRequest, *, num_layers: int, n_vocab: int, vocabulary: NumberVocabulary
) -> tuple[str, FinishReason]:
    """Text and reason of the unbroken, undivided run."""
    stream, text = TextStream(request.stop), ""
    for token, _ in digest_draws(request, num_layers=num_layers, n_vocab=n_vocab):
        if token in vocabulary.eog_tokens and not request.ignore_eog:
            return text + stream.flush(), FinishReason.STOP
        text += stream.feed(vocabulary.token_bytes(token))
        if stream.stopped:
            return text, FinishReason.STOP
    return text + stream.flush(), FinishReason.LENGTH


def digest_draws(request: GenerateRequest, *, num_layers: int, n_vocab: int) -> Iterator[Drawn]:
    """What is drawn in the unbroken, undivided run, up to max_tokens whatever it is."""
    engine = DigestEngine(
        LayerRange(0, num_layers), num_layers, n_vocab=n_vocab, max_batch_tokens=1 << 20, cells=1 << 30
    )
    tokens, held = list(request.prompt_tokens), 0
    for _ in range(request.max_tokens):
        draw = Draw(request.sampling, len(tokens), tokens[len(request.prompt_tokens) :])
        chunk = Chunk(0, held, tokens[held:], draw, request.sampling.seed)
        drawn = engine.compute([chunk], None).drawn_behind(0)
        assert drawn is not None
        held = len(tokens)
        tokens.append(drawn.token)
        yield drawn
