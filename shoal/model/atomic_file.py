"""A file that appears whole or not at all.

Owns the temporary beside the target, its lock, and its removal. A temporary is locked for as long
as its writer lives, so that what a dead process left behind can be told from work in progress.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from shoal.core.errors import ConfigError

SUFFIX = ".partial"


@contextmanager
def atomic_file(target: Path, expected_bytes: int) -> Iterator[FileIO]:
    """A new file, renamed to `target` when the block ends; removed when the block raises.

    expected_bytes: checked against the free space before anything is written.
    Raises ConfigError where the folder cannot be written or lacks space.
    """
    make_folder(target.parent)
    check_space(target, expected_bytes)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{SUFFIX}")
    try:
        with _open_new(temporary) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            os.fsync(file.fileno())
            # Renamed while still locked: nobody may take it for a dead writer's.
            os.replace(temporary, target)
        _sync_folder(target.parent)
    finally:
        # Also on KeyboardInterrupt, or an exception that a signal raised. Gone after the rename.
        temporary.unlink(missing_ok=True)


def remove_abandoned(folder: Path, *, now_s: float, min_age_s: float = 5.0) -> int:
    """Delete temporaries in `folder` whose writer has died. Returns how many.

    min_age_s: younger ones stay, since their writer may not have locked them yet.
    """
    removed = 0
    for temporary in folder.glob(f".*{SUFFIX}"):
        with suppress(FileNotFoundError), temporary.open("rb") as file:
            if now_s - os.fstat(file.fileno()).st_mtime < min_age_s:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            temporary.unlink()
            removed += 1
    return removed


def write_all(file: FileIO, content: bytes | memoryview) -> None:
    """Write every byte: one call to an unbuffered file may take fewer."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def make_folder(folder: Path) -> None:
    """Raises ConfigError where the folder cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be made: {error.strerror}.",
            next_step="Choose a folder that this user may write to.",
        ) from error


def _open_new(path: Path) -> FileIO:
    try:
        return FileIO(path, "x+")
    except OSError as error:
        raise ConfigError(
            f"No file can be written in {path.parent}: {error.strerror}.",
            next_step="Choose a folder that this user may write to.",
        ) from error


def check_space(target: Path, expected_bytes: int) -> None:
    """Raises ConfigError where the disk of `target` has fewer bytes free."""
    free_bytes = shutil.disk_usage(target.parent).free
    if expected_bytes > free_bytes:
        raise ConfigError(
            f"Writing {target} needs {expected_bytes / 2**20:.0f} MiB, "
            f"and its disk has {free_bytes / 2**20:.0f} MiB free.",
            next_step="Free some space, or choose a folder on another disk.",
        )


def _sync_folder(folder: Path) -> None:
    """Without it a power cut could forget the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
