"""Tiny model files, written once for all tests of this package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny_models import write_tiny_model

TinyModel = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Writes a tiny model with the given arguments, or returns the one written before."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[str, Path] = {}

    def get(architecture: str, **options: object) -> Path:
        name = "-".join([architecture, *(f"{key}={value}" for key, value in sorted(options.items()))])
        if name not in written:
            written[name] = write_tiny_model(folder / f"{name}.gguf", architecture, **options)  # type: ignore[arg-type]
        return written[name]

    return get
