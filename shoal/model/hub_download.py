"""A model file from the Hugging Face hub.

The only file that knows `huggingface_hub`. The hub's own cache keeps what has been fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import tqdm

from shoal.core.errors import ConfigError, FetchError
from shoal.model.part_download import Progress

SCHEME: Final = "hf://"


def fetch_from_hub(name: str, progress: Progress | None = None) -> Path:
    """The file that `hf://owner/repo/file.gguf` names. Raises ConfigError where the name has not
    this form, FetchError where it cannot be fetched and is not in the hub's cache."""
    repo, filename = _parse(name)
    try:
        return Path(hf_hub_download(repo, filename, tqdm_class=_silent_bar(progress)))
    except (OSError, ValueError, HTTPError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise FetchError(
            f"{name} could not be fetched: {reason[0]}",
            next_step="Check the network and the name (for a gated model also HF_TOKEN), "
            "or give the path of a .gguf file that you have.",
        ) from error


def _parse(name: str) -> tuple[str, str]:
    parts = name.removeprefix(SCHEME).split("/")
    if len(parts) < 3 or not all(parts) or not parts[-1].endswith(".gguf"):
        raise ConfigError(
            f"{name} does not name a file on the hub.",
            next_step=f"Write {SCHEME}owner/repo/file.gguf, with the file's full name.",
        )
    return "/".join(parts[:2]), "/".join(parts[2:])


def _silent_bar(progress: Progress | None) -> type[Any]:
    """The hub reports progress only to a tqdm class: one that draws nothing and passes it on."""

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))
            self.num_done = int(kwargs.get("initial", 0))
            self.num_total = int(kwargs.get("total") or 0)

        def update(self, n: float | None = 1) -> None:
            self.num_done += int(n or 0)
            if progress is not None:
                progress(self.num_done, max(self.num_total, self.num_done))

    return SilentBar
