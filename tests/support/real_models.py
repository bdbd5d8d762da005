"""Where tests find real model files; a test that needs one that is not there skips visibly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core.errors import FetchError
from shoal.model import known_models

GEMMA = "gemma3-270m"
QWEN = "qwen2.5-coder-1.5b"


def gemma_path() -> Path:
    """Gemma 3 270M: $SHOAL_GEMMA, or the catalogue's copy, fetched once (253 MB)."""
    given = os.environ.get("SHOAL_GEMMA")
    if given:
        return Path(given)
    try:
        return known_models.resolve(GEMMA)
    except FetchError as error:
        pytest.skip(f"{GEMMA} cannot be fetched: {error}")


def qwen_path() -> Path:
    """Qwen2.5-Coder 1.5B: $SHOAL_QWEN, or the catalogue's copy where `make serve` fetched it."""
    given = os.environ.get("SHOAL_QWEN")
    path = Path(given) if given else known_models.demo_path(QWEN)
    if path is None:
        pytest.skip(f"{QWEN} is not here; run `make serve` once, or set SHOAL_QWEN to its file")
    return path
