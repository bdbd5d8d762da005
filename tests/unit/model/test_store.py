"""The cache cuts once, notices damage, stays within its bound, and survives other processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, FetchError
from shoal.core.specs import LayerRange, ModelSpec
from shoal.model.slicing import slice_file_bytes
from shoal.model.spec_reader import read_spec
from shoal.model.store import SliceStore
from tests.unit.model.conftest import TinyModel


@pytest.fixture
def source(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen2")


@pytest.fixture
def spec(source: Path) -> ModelSpec:
    return read_spec(source)


def counting() -> tuple[Callable[[int, int], None], list[int]]:
    """A progress function, and the calls it got: none means that nothing was cut."""
    calls: list[int] = []
    return lambda done, total: calls.append(done), calls


def test_a_slice_is_cut_once_and_then_reused(tmp_path: Path, source: Path, spec: ModelSpec) -> None:
    progress, calls = counting()
    first = SliceStore(tmp_path).slice_path(source, spec, LayerRange(0, 3), progress)
    assert calls
    calls.clear()
    assert SliceStore(tmp_path).slice_path(source, spec, LayerRange(0, 3), progress) == first
    assert calls == []


def test_slices_and_the_table_have_names_of_their_own(tmp_path: Path, source: Path, spec: ModelSpec) -> None:
    store = SliceStore(tmp_path)
    paths = {
        store.slice_path(source, spec, LayerRange(0, 3)),
        store.slice_path(source, spec, LayerRange(3, 6)),
        store.embedding_path(source, spec),
    }
    assert {entry.path for entry in store.entries()} == paths
    assert len(paths) == 3


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_damaged_slice_is_cut_again(tmp_path: Path, source: Path, spec: ModelSpec, keep: float) -> None:
    store = SliceStore(tmp_path)
    path = store.slice_path(source, spec, LayerRange(0, 3))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    assert store.slice_path(source, spec, LayerRange(0, 3)).read_bytes() == whole


def test_the_slice_used_longest_ago_is_evicted_first(tmp_path: Path, source: Path, spec: ModelSpec) -> None:
    ranges = [LayerRange(0, 2), LayerRange(2, 4)]
    older, newer = (SliceStore(tmp_path).slice_path(source, spec, layers) for layers in ranges)
    os.utime(older, (1000, 1000))
    os.utime(newer, (2000, 2000))
    bound = sum(slice_file_bytes(source, layers) for layers in ranges) + 1000
    third = SliceStore(tmp_path, bound).slice_path(source, spec, LayerRange(1, 3))
    assert {entry.path for entry in SliceStore(tmp_path).entries()} == {newer, third}


def test_a_slice_in_use_is_never_evicted_and_the_bound_is_said(
    tmp_path: Path, source: Path, spec: ModelSpec
) -> None:
    store = SliceStore(tmp_path, slice_file_bytes(source, LayerRange(0, 3)) + 1000)
    first = store.slice_path(source, spec, LayerRange(0, 3))
    with pytest.raises(ConfigError, match="bound"):
        store.slice_path(source, spec, LayerRange(3, 6))
    assert [entry.path for entry in store.entries()] == [first]


CUT_SCRIPT = """
import sys
from pathlib import Path
from shoal.core.specs import LayerRange
from shoal.model.spec_reader import read_spec
from shoal.model.store import SliceStore
source = Path(sys.argv[2])
def progress(done, total):
    if sys.argv[3] == "stop half-way" and done > total // 2:
        print("half-way", flush=True)
        sys.stdin.read()
SliceStore(Path(sys.argv[1])).slice_path(source, read_spec(source), LayerRange(0, 3), progress)
"""


def start_cutter(root: Path, source: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CUT_SCRIPT, str(root), str(source), mode]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_want_one_slice_end_with_one_whole_file(
    tmp_path: Path, source: Path, spec: ModelSpec
) -> None:
    cutters = [start_cutter(tmp_path, source, "go on") for _ in range(2)]
    for cutter in cutters:
        cutter.communicate(timeout=60)
        assert cutter.returncode == 0
    progress, calls = counting()
    SliceStore(tmp_path).slice_path(source, spec, LayerRange(0, 3), progress)
    assert calls == []
    assert list(tmp_path.glob(".*.partial")) == []


def test_what_a_killed_cutter_left_is_removed_and_a_living_ones_is_not(
    tmp_path: Path, source: Path, spec: ModelSpec
) -> None:
    cutter = start_cutter(tmp_path, source, "stop half-way")
    assert cutter.stdout is not None
    assert cutter.stdout.readline() == "half-way\n"
    (partial,) = tmp_path.glob(".*.partial")
    os.utime(partial, (1000, 1000))
    SliceStore(tmp_path)
    assert partial.exists()
    cutter.send_signal(signal.SIGKILL)
    cutter.communicate(timeout=60)
    assert partial.exists()
    SliceStore(tmp_path)
    assert not partial.exists()


def test_a_store_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="SHOAL_HOME"):
        SliceStore(tmp_path / "file" / "slices")


def offered(path: Path) -> tuple[str, int, str]:
    """Name, bytes and digest of a file that another machine has."""
    content = path.read_bytes()
    return path.name, len(content), hashlib.sha256(content).hexdigest()


def never() -> Iterator[bytes]:
    raise AssertionError("it is there already")


def test_a_slice_that_was_fetched_is_kept_and_not_fetched_again(tmp_path: Path, source: Path) -> None:
    name, num_bytes, sha256 = offered(source)
    content = source.read_bytes()
    store = SliceStore(tmp_path / "other")
    path = store.fetched_path(name, num_bytes, sha256, lambda: iter([content[:1000], content[1000:]]))
    assert path.read_bytes() == content
    assert SliceStore(tmp_path / "other").fetched_path(name, num_bytes, sha256, never) == path


def test_a_fetched_slice_that_was_changed_on_the_disk_is_fetched_again(tmp_path: Path, source: Path) -> None:
    name, num_bytes, sha256 = offered(source)
    store = SliceStore(tmp_path / "other")
    path = store.fetched_path(name, num_bytes, sha256, lambda: iter([source.read_bytes()]))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    store.fetched_path(name, num_bytes, sha256, lambda: iter([source.read_bytes()]))
    assert path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content[:-1] + b"x"])
def test_what_comes_with_another_digest_or_length_is_not_kept(
    tmp_path: Path, source: Path, change: Callable[[bytes], bytes]
) -> None:
    name, num_bytes, sha256 = offered(source)
    store = SliceStore(tmp_path / "other")
    with pytest.raises(FetchError, match="is not what was offered"):
        store.fetched_path(name, num_bytes, sha256, lambda: iter([change(source.read_bytes())]))
    assert [path for path in store.root.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.parametrize("name", ["../evil.gguf", "/etc/x.gguf", "x.txt", ""])
def test_a_name_that_leads_out_of_the_store_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchError, match="no name of a slice"):
        SliceStore(tmp_path).fetched_path(name, 1, "x", never)
