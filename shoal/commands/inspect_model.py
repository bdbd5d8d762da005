"""`shoal inspect`: what a model file is, and how it can be cut."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.commands.progress import byte_progress
from shoal.core.errors import UnsupportedModel
from shoal.core.specs import ModelSpec
from shoal.model.gguf_file import ModelFile
from shoal.model.known_models import resolve
from shoal.model.slicing import runs_text
from shoal.model.spec_reader import legal_cuts, read_spec


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A .gguf file, hf://owner/repo/file.gguf, or the name of a demo model."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, sizes in bytes, for scripts.")
    ] = False,
) -> None:
    """Say what a model file holds: layers, bytes, cache bytes per token, and where it may be cut.

    Ends with status 2, after saying why, where the model cannot be cut.
    """
    with byte_progress(f"Fetching {model}") as progress:
        path = resolve(model, progress)
    console = Console(highlight=False)
    try:
        spec = read_spec(path)
    except UnsupportedModel as error:
        _print_unsupported(console, ModelFile(path), error, as_json)
        raise typer.Exit(2) from error
    cuts = legal_cuts(path)
    if as_json:
        _print_json({"path": str(path), "supported": True, **asdict(spec), "legal_cuts": cuts})
    else:
        console.print(_summary(spec, cuts))
        console.print(_layers(spec))


def _print_unsupported(console: Console, model: ModelFile, error: UnsupportedModel, as_json: bool) -> None:
    architecture = model.text("general.architecture")
    if as_json:
        facts = {"path": str(model.path), "supported": False, "architecture": architecture}
        _print_json(facts | {"total_bytes": model.size_bytes, "reason": error.message})
        return
    table = _facts()
    table.add_row("Architecture", Text(architecture))
    table.add_row("File", _mib(model.size_bytes))
    table.add_row("Cannot be cut", Text(str(error)))
    console.print(table)


def _print_json(facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts))


def _summary(spec: ModelSpec, cuts: tuple[int, ...]) -> Table:
    table = _facts()
    table.add_row("Model", Text(spec.name))
    table.add_row("Architecture", spec.architecture)
    table.add_row("Layers", f"{spec.num_layers}, {_mib(sum(spec.layer_bytes))} together")
    table.add_row("Row width", f"{spec.n_embd} ({spec.n_embd * 4 / 2**10:.1f} KiB a token between slices)")
    table.add_row("Vocabulary", f"{spec.n_vocab} tokens")
    table.add_row("Trained context", f"{spec.n_ctx_train} tokens")
    table.add_row("Embedding", f"{_mib(spec.embedding_bytes)}, held by the first slice")
    table.add_row("LM head", f"{_mib(spec.head_bytes)}, held by the last slice")
    table.add_row("Cache", f"{sum(spec.kv_bytes_per_token) / 2**10:.1f} KiB a token in all layers (F16)")
    table.add_row(
        "Legal cuts", f"before layer {runs_text(cuts)}" if cuts else "none: it cannot be cut in two"
    )
    return table


def _layers(spec: ModelSpec) -> Table:
    """Equal neighbours share a line."""
    table = Table("Layers", "Bytes each", "Cache bytes a token each", box=None, header_style="bold")
    start = 0
    facts = list(zip(spec.layer_bytes, spec.kv_bytes_per_token, strict=True))
    for layer in range(1, spec.num_layers + 1):
        if layer == spec.num_layers or facts[layer] != facts[start]:
            layer_bytes, kv_bytes = facts[start]
            name = str(start) if layer == start + 1 else f"{start} to {layer - 1}"
            table.add_row(name, _mib(layer_bytes), str(kv_bytes))
            start = layer
    return table


def _facts() -> Table:
    table = Table(box=None, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    return table


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
