"""`shoal slice`: cut a model into slice files by hand. `shoal serve` does it by itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shoal.commands.progress import byte_progress
from shoal.core.errors import ConfigError, IllegalCut
from shoal.core.specs import LayerRange
from shoal.model.known_models import resolve
from shoal.model.slicing import cut_embedding, cut_slice, slice_file_bytes
from shoal.model.spec_reader import read_spec


def slice_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A .gguf file, hf://owner/repo/file.gguf, or the name of a demo model."
        ),
    ],
    layers: Annotated[
        str | None,
        typer.Argument(
            metavar="[START:END]",
            help="One slice: layers START to END - 1. 0:9 is the first nine. Leave it out with --cuts.",
        ),
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="All slices: a new one starts before each of these layers. 9,18 makes three.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the files go. Made if missing.")
    ] = Path(),
) -> None:
    """Write slices of a model as files that llama.cpp loads.

    The slice that starts at layer 0 comes with a second file, the embedding table that its machine
    looks tokens up in. `shoal inspect MODEL` shows where a model may be cut.
    """
    with byte_progress(f"Fetching {model}") as progress:
        path = resolve(model, progress)
    num_layers = read_spec(path).num_layers
    ranges = parse_ranges(layers, cuts, num_layers)
    for wanted in ranges:  # all are checked before the first is written
        slice_file_bytes(path, wanted)
    console = Console(highlight=False, soft_wrap=True)
    for wanted in ranges:
        if wanted.start == 0:
            _write_embedding(console, path, out)
        _write_slice(console, path, wanted, out)


def parse_ranges(layers: str | None, cuts: str | None, num_layers: int) -> tuple[LayerRange, ...]:
    """The ranges that the two ways of saying it name. Raises ConfigError or IllegalCut."""
    if (layers is None) == (cuts is None):
        raise ConfigError(
            "Say either one slice or all cuts.",
            next_step="`shoal slice MODEL 0:9` cuts one slice, `shoal slice MODEL --cuts 9,18` cuts three.",
        )
    if layers is not None:
        return (_parse_range(layers),)
    borders = [0, *_parse_cuts(cuts or ""), num_layers]
    if any(left >= right for left, right in pairwise(borders)):
        raise IllegalCut(
            f"The cuts {cuts} do not ascend between 0 and {num_layers}.",
            next_step=f"Give layers from 1 to {num_layers - 1}, smallest first, each once.",
        )
    return tuple(LayerRange(*pair) for pair in pairwise(borders))


def _parse_range(text: str) -> LayerRange:
    start, colon, end = text.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal()):
        raise ConfigError(
            f"{text!r} is no layer range.", next_step="Write START:END, for example 0:9 for the first nine."
        )
    return LayerRange(int(start), int(end))


def _parse_cuts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(
            f"{text!r} is no list of layers.", next_step="Write layer numbers with commas, for example 9,18."
        )
    return tuple(int(part) for part in parts)


def _write_slice(console: Console, model_path: Path, layers: LayerRange, out: Path) -> None:
    target = out / f"{model_path.stem}-layers-{layers.start}-{layers.end}.gguf"
    with byte_progress(f"Cutting {layers}") as progress:
        cut_slice(model_path, layers, target, progress)
    console.print(f"{target}  {target.stat().st_size / 2**20:.1f} MiB  layers {layers}", markup=False)


def _write_embedding(console: Console, model_path: Path, out: Path) -> None:
    target = out / f"{model_path.stem}-embedding.gguf"
    with byte_progress("Cutting the embedding table") as progress:
        cut_embedding(model_path, target, progress)
    console.print(f"{target}  {target.stat().st_size / 2**20:.1f} MiB  embedding table", markup=False)
