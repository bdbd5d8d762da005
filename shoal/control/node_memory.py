"""How much memory this machine can still give, as its container sees it.

The smaller of the kernel's MemAvailable and what the control group allows minus what it uses.
A host's 64 GiB are of no use to a container limited to 4.
"""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")


def usable_memory_bytes() -> int:
    """Bytes that new processes in this container can take without being killed for it."""
    available: int = psutil.virtual_memory().available
    in_cgroup = cgroup_free_bytes(CGROUP_ROOT, PROC_CGROUP)
    return available if in_cgroup is None else min(available, in_cgroup)


def cgroup_free_bytes(cgroup_root: Path, proc_cgroup: Path) -> int | None:
    """The least (limit - usage) of this process's control group and those above it.

    Reads v2 and v1 layouts. Page cache that can be dropped does not count as usage. None where
    no limit is set.
    """
    free = [
        bytes_left
        for directory in _memory_cgroups(cgroup_root, proc_cgroup)
        if (bytes_left := _bytes_left(directory)) is not None
    ]
    return min(free, default=None)


def _memory_cgroups(cgroup_root: Path, proc_cgroup: Path) -> list[Path]:
    """Directories of our group up to the root. A container often sees only the root as its own."""
    directories = [cgroup_root, cgroup_root / "memory"]
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return directories
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = {"": cgroup_root, "memory": cgroup_root / "memory"}.get(controllers)
        if base is None:
            continue
        group = Path(path.lstrip("/"))
        directories += [base / group, *(base / parent for parent in group.parents)]
    return directories


def _bytes_left(directory: Path) -> int | None:
    limit = _read_number(directory / "memory.max", directory / "memory.limit_in_bytes")
    usage = _read_number(directory / "memory.current", directory / "memory.usage_in_bytes")
    if limit is None or usage is None:
        return None
    return max(0, limit - usage + _inactive_file_bytes(directory / "memory.stat"))


def _read_number(*candidates: Path) -> int | None:
    for path in candidates:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None  # v2 says "max" for no limit
    return None


def _inactive_file_bytes(stat_path: Path) -> int:
    try:
        lines = stat_path.read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split() for line in lines if len(line.split()) == 2)
    # v1 names what includes the groups below "total_".
    return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
