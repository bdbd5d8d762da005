"""The one model that a gateway serves, with what turns text into tokens and tokens into text.

The gateway sees a pipeline only through this; it does not know which engine or how many
machines stand behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal import __version__
from shoal.pipeline.interface import TextGenerator

ChatMessages = list[dict[str, str]]
"""Messages as the chat template takes them: `role` and `content`, content a plain string."""


@dataclass(frozen=True, slots=True)
class ModelService:
    """created: unix seconds, shown by /v1/models. n_ctx: tokens of prompt and answer together.
    n_vocab: token ids are below it. encode_chat: applies the chat template; encode_text: for
    /v1/completions, control tokens in the text stay text. Both may block, are called from any
    thread, and raise BadRequest. invariant: the mode (docs/MODES.md).
    """

    model_id: str
    created: int
    n_ctx: int
    n_vocab: int
    generator: TextGenerator
    encode_chat: Callable[[ChatMessages], list[int]]
    encode_text: Callable[[str], list[int]]
    invariant: bool = False

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: answers under different ones need not be equal."""
        return f"shoal-{__version__}-invariant" if self.invariant else f"shoal-{__version__}"
