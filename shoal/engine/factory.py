"""Loading the engine that a configuration names."""

from __future__ import annotations

from shoal.core.config import EngineConfig
from shoal.core.specs import LayerRange
from shoal.engine.digest_engine import DigestEngine
from shoal.engine.interface import Engine


def load_engine(config: EngineConfig, layers: LayerRange, num_layers: int) -> Engine:
    """Load one slice. Takes as long as reading its weights does.

    Raises what the engine raises: ModelFileError, UnsupportedModel, InsufficientMemory, ConfigError.
    """
    if config.kind == "digest":
        return DigestEngine(
            layers,
            num_layers,
            n_vocab=config.n_vocab,
            cells=config.cells,
            max_sequences=config.max_sequences,
            max_batch_tokens=config.max_batch_tokens,
        )
    # Imported here: llama.cpp's library takes a second to load and digest workers do without it.
    from shoal.engine.llama_engine import LlamaEngine

    return LlamaEngine(config, layers, num_layers)
