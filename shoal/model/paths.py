"""Where Shoal keeps files of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def shoal_home(environment: Mapping[str, str] = os.environ) -> Path:
    """$SHOAL_HOME where it is set, else ~/.cache/shoal. Not made here."""
    chosen = environment.get("SHOAL_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "shoal"


def slices_folder(home: Path) -> Path:
    return home / "slices"


def models_folder(home: Path) -> Path:
    return home / "models"
