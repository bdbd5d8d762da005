"""What a container may still take, in the layouts of both cgroup versions."""

from __future__ import annotations

from pathlib import Path

import psutil

from shoal.control.node_memory import cgroup_free_bytes, usable_memory_bytes

GIB = 2**30


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text + "\n")


def proc_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "proc_cgroup"
    path.write_text(text)
    return path


def test_a_limit_of_4_gib_is_seen_as_4_gib_under_cgroup_v2(tmp_path: Path) -> None:
    write(tmp_path / "fs" / "box", memory__max=str(4 * GIB), memory__current=str(GIB))
    assert cgroup_free_bytes(tmp_path / "fs", proc_file(tmp_path, "0::/box\n")) == 3 * GIB


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "fs" / "slice", memory__max=str(2 * GIB), memory__current=str(GIB))
    write(tmp_path / "fs" / "slice" / "box", memory__max="max", memory__current=str(GIB))
    assert cgroup_free_bytes(tmp_path / "fs", proc_file(tmp_path, "0::/slice/box\n")) == GIB


def test_cgroup_v1_is_read_too(tmp_path: Path) -> None:
    write(
        tmp_path / "fs" / "memory" / "box",
        memory__limit_in_bytes=str(4 * GIB),
        memory__usage_in_bytes=str(GIB),
    )
    assert cgroup_free_bytes(tmp_path / "fs", proc_file(tmp_path, "4:memory:/box\n0::/\n")) == 3 * GIB


def test_a_container_that_sees_only_its_own_root_is_read_there(tmp_path: Path) -> None:
    write(tmp_path / "fs", memory__max=str(4 * GIB), memory__current=str(GIB))
    assert cgroup_free_bytes(tmp_path / "fs", proc_file(tmp_path, "0::/unseen/path\n")) == 3 * GIB


def test_page_cache_that_can_be_dropped_is_free(tmp_path: Path) -> None:
    stat = f"anon 5\ninactive_file {GIB}"
    write(tmp_path / "fs", memory__max=str(4 * GIB), memory__current=str(3 * GIB), memory__stat=stat)
    assert cgroup_free_bytes(tmp_path / "fs", proc_file(tmp_path, "0::/\n")) == 2 * GIB


def test_no_limit_and_no_cgroups_say_nothing(tmp_path: Path) -> None:
    write(tmp_path / "fs", memory__max="max", memory__current=str(GIB))
    assert cgroup_free_bytes(tmp_path / "fs", proc_file(tmp_path, "0::/\n")) is None
    assert cgroup_free_bytes(tmp_path / "nowhere", tmp_path / "absent") is None


def test_this_machine_has_some_and_not_more_than_it_is_made_of() -> None:
    assert 0 < usable_memory_bytes() <= psutil.virtual_memory().total
