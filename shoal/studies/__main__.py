"""`python -m shoal.studies [NAME...] [--out DIR]`: write the studies' pages and plots again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from shoal.core.errors import ShoalError
from shoal.core.names import find
from shoal.studies.cast_off import cast_off
from shoal.studies.consoles import consoles
from shoal.studies.cost import cost
from shoal.studies.net_cafe import net_cafe
from shoal.studies.page import Page
from shoal.studies.scale import scale

STUDIES: Final[dict[str, Callable[[], Page]]] = {
    "consoles": consoles,
    "net_cafe": net_cafe,
    "cost": cost,
    "cast_off": cast_off,
    "scale": scale,
}


def write_studies(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all without a name.")] = None,
    out: Annotated[Path, typer.Option("--out")] = Path("docs/studies"),
) -> None:
    """Compute studies and write their pages and plots."""
    for name in names or STUDIES:
        page = find(name, STUDIES, kind="study")()
        page.write(out)
        typer.echo(f"{out / page.name}.md")


if __name__ == "__main__":
    try:
        typer.run(write_studies)
    except ShoalError as error:
        typer.echo(f"studies: {error}", err=True)
        sys.exit(2)
