"""The `shoal` command: its subcommands, its logging, and how an error ends it.

The only place that sets up logging. Exit status: 0, 1 for a failure, 2 for something that the
person at the keyboard can change.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from shoal import __version__
from shoal.commands.assess import assess_command
from shoal.commands.bench import bench
from shoal.commands.catalogue import catalogue_command
from shoal.commands.chaos import chaos
from shoal.commands.chat import chat
from shoal.commands.estimate import estimate
from shoal.commands.inspect_model import inspect
from shoal.commands.join import join
from shoal.commands.judge_hypotheses import judge_hypotheses
from shoal.commands.leave import leave
from shoal.commands.serve import serve
from shoal.commands.simulate import simulate
from shoal.commands.slice_model import slice_model
from shoal.commands.status import status
from shoal.commands.token import token
from shoal.commands.trace import trace
from shoal.core.errors import ConfigError, ShoalError

EXIT_FAILED = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(chat)
app.command()(status)
app.command()(trace)
app.command()(bench)
app.command()(inspect)
app.command()(join)
app.command()(leave)
app.command()(chaos)
app.add_typer(token, name="token")
app.command("slice")(slice_model)
app.command()(estimate)
app.command("assess")(assess_command)
app.command("test-hypothesis")(judge_hypotheses)
app.command("catalogue")(catalogue_command)
app.command()(simulate)


def main() -> None:
    """Entry point of the `shoal` script."""
    try:
        app()
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what happens, not only what fails.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """One large language model across several machines, each holding a slice of its layers.

    \b
    shoal serve qwen2.5-coder-1.5b     fetch a small model, cut and serve it
    shoal chat "What is a slice?"      ask it
    shoal status                       see nodes, slices and milliseconds
    shoal trace                        see where the last request's time went
    shoal inspect model.gguf           where can this file be cut?
    shoal serve model.gguf --nodes 2   serve a file of yours
    shoal estimate --machines 8xN100   what can these machines do?
    shoal assess --machines 8xN100 --model qwen3-30b-a3b
    """
    _set_up_logging(logging.INFO if verbose else logging.WARNING)


def _set_up_logging(level: int) -> None:
    logging.basicConfig(
        level=logging.WARNING,  # libraries'
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("shoal").setLevel(level)


if __name__ == "__main__":
    main()
