"""The cache of cut files: each is named by what it holds, so it is cut once and reused.

Owns a folder, its bound in bytes, and what is evicted. Safe between processes: a file appears whole
or not at all, and two that want the same file wait for one cut. Knows nothing of who uses a slice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from shoal.core.errors import ConfigError, FetchError, ModelFileError
from shoal.core.specs import LayerRange, ModelSpec
from shoal.model.atomic_file import atomic_file, remove_abandoned, write_all
from shoal.model.gguf_file import ModelFile
from shoal.model.slicing import (
    SLICER_VERSION,
    Progress,
    cut_embedding,
    cut_slice,
    embedding_file_bytes,
    slice_file_bytes,
)

SUFFIX: Final = ".gguf"

LOCK_WAIT_S: Final = 600.0
LOCK_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One cut file. last_used_s: when it was last handed out, in seconds since the epoch."""

    path: Path
    num_bytes: int
    last_used_s: float


class SliceStore:
    """Slices and embedding tables under `root`, by the content of the model that they are of.

    max_bytes: of all files together; None is no bound. The files used longest ago are evicted
    first, and never one that this store has handed out: its worker may not have opened it yet.
    """

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        """Makes `root` and removes what cutters that have died left in it. Raises ConfigError."""
        self.root = root
        self.max_bytes = max_bytes
        self._handed_out: set[Path] = set()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The slice cache {root} cannot be made: {error.strerror}.",
                next_step="Set SHOAL_HOME to a folder that this user may write to.",
            ) from error
        remove_abandoned(root, now_s=time.time())

    def slice_path(
        self, model_path: Path, spec: ModelSpec, layers: LayerRange, progress: Progress | None = None
    ) -> Path:
        """The file of `layers`, cut now if it is not there. Raises what `cut_slice` raises."""
        name = f"{spec.content_id}-v{SLICER_VERSION}-{layers.start}-{layers.end}{SUFFIX}"
        num_bytes = slice_file_bytes(model_path, layers)
        return self._get(name, num_bytes, lambda path: cut_slice(model_path, layers, path, progress))

    def embedding_path(self, model_path: Path, spec: ModelSpec, progress: Progress | None = None) -> Path:
        """The file of the embedding table, cut now if it is not there."""
        name = f"{spec.content_id}-v{SLICER_VERSION}-embedding{SUFFIX}"
        num_bytes = embedding_file_bytes(model_path)
        return self._get(name, num_bytes, lambda path: cut_embedding(model_path, path, progress))

    def fetched_path(
        self, name: str, num_bytes: int, sha256: str, chunks: Callable[[], Iterator[bytes]]
    ) -> Path:
        """A file that was cut elsewhere: fetched now if it is not there with this digest.

        chunks: called where it must be fetched; yields the whole file. Raises FetchError where what came
        is another file, and what `chunks` raises.
        """
        if Path(name).name != name or not name.endswith(SUFFIX):
            raise FetchError(f"{name!r} is no name of a slice.")
        return self._get(
            name,
            num_bytes,
            lambda path: _write_fetched(path, num_bytes, sha256, chunks()),
            is_right=lambda path: _sha256(path) == sha256,
        )

    def entries(self) -> tuple[StoreEntry, ...]:
        """All files, used longest ago first."""
        found = []
        for path in self.root.glob(f"*{SUFFIX}"):
            # Another process may evict between the listing and the look.
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append(StoreEntry(path, status.st_size, status.st_mtime))
        return tuple(sorted(found, key=lambda entry: (entry.last_used_s, entry.path)))

    def _get(
        self,
        name: str,
        num_bytes: int,
        cut: Callable[[Path], object],
        is_right: Callable[[Path], bool] = lambda path: True,
    ) -> Path:
        path = self.root / name
        self._handed_out.add(path)
        with self._lock(name):
            if not (_is_whole(path, num_bytes) and is_right(path)):
                path.unlink(missing_ok=True)
                self._make_room(num_bytes)
                cut(path)
            os.utime(path)
        return path

    def _make_room(self, num_bytes: int) -> None:
        if self.max_bytes is None:
            return
        entries = self.entries()
        excess_bytes = sum(entry.num_bytes for entry in entries) + num_bytes - self.max_bytes
        for entry in entries:
            if excess_bytes <= 0:
                return
            if entry.path not in self._handed_out:
                entry.path.unlink(missing_ok=True)
                excess_bytes -= entry.num_bytes
        if excess_bytes > 0:
            raise ConfigError(
                f"The slice cache {self.root} may hold {self.max_bytes / 2**20:.0f} MiB, and the slices in "
                f"use with this one need {excess_bytes / 2**20:.0f} MiB more.",
                next_step="Raise the cache's bound.",
            )

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """One cutter a file, over all processes. Freed by the system if its holder dies.

        Without it two cuts of one slice would still be right, only wasteful; so whoever has waited
        long (the holder may be stopped) goes on without it.
        """
        with (self.root / f".{name}.lock").open("w") as lock:
            deadline_s = time.monotonic() + LOCK_WAIT_S
            while not _try_lock(lock) and time.monotonic() < deadline_s:
                time.sleep(LOCK_POLL_S)
            yield


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_fetched(path: Path, num_bytes: int, sha256: str, chunks: Iterator[bytes]) -> None:
    digest = hashlib.sha256()
    num_written = 0
    with atomic_file(path, num_bytes) as file:
        for chunk in chunks:
            write_all(file, chunk)
            digest.update(chunk)
            num_written += len(chunk)
        if num_written != num_bytes or digest.hexdigest() != sha256:
            raise FetchError(
                f"What came for {path.name} is not what was offered: {num_written} of {num_bytes} bytes, "
                f"sha256 {digest.hexdigest()} instead of {sha256}.",
                next_step="If this repeats, the file on the head is damaged: remove it there.",
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(path: Path, num_bytes: int) -> bool:
    """Whether the file has its size, and a header whose tensors all lie within it."""
    try:
        return path.stat().st_size == num_bytes and bool(ModelFile(path).tensors)
    except (FileNotFoundError, ModelFileError):
        return False
