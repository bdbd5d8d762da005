"""`shoal inspect` and `shoal slice`, as a person or a script uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from shoal.commands.inspect_model import inspect
from shoal.commands.slice_model import parse_ranges, slice_model
from shoal.core.errors import ConfigError, IllegalCut, ModelFileError
from shoal.core.specs import LayerRange
from shoal.model.gguf_file import ModelFile
from tests.support.tiny_models import write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", "gemma3", num_layers=12, name="[bold]tiny[/x]")


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command("inspect")(inspect)
    app.command("slice")(slice_model)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_inspect_shows_what_cutting_needs_to_know(model: Path) -> None:
    status, text = run("inspect", str(model))
    assert status == 0
    for part in ("[bold]tiny[/x]", "gemma3", "before layer 1 to 10", "held by the last slice", "0 to 11"):
        assert part in text


def test_inspect_as_json_is_one_object(model: Path) -> None:
    status, text = run("inspect", str(model), "--json")
    facts = json.loads(text)
    assert status == 0
    assert facts["supported"] is True
    assert facts["legal_cuts"] == list(range(1, 11))
    assert len(facts["layer_bytes"]) == len(facts["kv_bytes_per_token"]) == 12


def test_inspect_says_why_a_model_cannot_be_cut_and_ends_with_status_2(model: Path, tmp_path: Path) -> None:
    run("slice", str(model), "0:3", "--out", str(tmp_path))
    piece = str(tmp_path / "tiny-layers-0-3.gguf")
    status, text = run("inspect", piece)
    assert status == 2
    assert "itself a slice" in text
    status, text = run("inspect", piece, "--json")
    assert status == 2
    assert json.loads(text)["supported"] is False


def test_inspect_of_a_damaged_file_is_the_files_error(tmp_path: Path) -> None:
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"damaged\.gguf"):
        run("inspect", str(tmp_path / "damaged.gguf"))


def test_slice_with_cuts_writes_all_slices_and_the_embedding(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, text = run("slice", str(model), "--cuts", "4,8", "-o", str(out))
    assert status == 0
    names = {"tiny-embedding.gguf", *(f"tiny-layers-{layers}.gguf" for layers in ("0-4", "4-8", "8-12"))}
    assert {path.name for path in out.iterdir()} == names
    assert all(name in text for name in names)
    assert ModelFile(out / "tiny-layers-4-8.gguf").integer("shoal.layer_start") == 4


def test_slice_refuses_an_illegal_slice_before_writing_a_legal_one(model: Path, tmp_path: Path) -> None:
    with pytest.raises(IllegalCut, match=r"\[5, 6\)"):
        run("slice", str(model), "--cuts", "5,6", "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("layers", "cuts", "ranges"),
    [
        ("0:3", None, [(0, 3)]),
        (None, "3", [(0, 3), (3, 6)]),
        (None, "1, 2,5", [(0, 1), (1, 2), (2, 5), (5, 6)]),
    ],
)
def test_ranges_are_said_in_two_ways(
    layers: str | None, cuts: str | None, ranges: list[tuple[int, int]]
) -> None:
    assert parse_ranges(layers, cuts, 6) == tuple(LayerRange(*pair) for pair in ranges)


@pytest.mark.parametrize(
    ("layers", "cuts"),
    [
        (None, None),
        ("0:3", "3"),
        *((layers, None) for layers in ("3", "a:b", "-1:3", "0:", ":")),
        *((None, cuts) for cuts in ("", "3,,4", "3,3", "4,2", "0,3", "6", "x")),
    ],
)
def test_other_words_are_refused(layers: str | None, cuts: str | None) -> None:
    with pytest.raises(ConfigError):
        parse_ranges(layers, cuts, 6)
