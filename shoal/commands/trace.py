"""`shoal trace`: where one request's time went, part by part, as a table with bars or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.request_times import RequestTimes
from shoal.gateway.client import DEFAULT_URL, ApiClient, ClientError, endpoint_at

_QUIET_S = 5.0
_BAR_WIDTH = 16


class _Answers(msgspec.Struct):
    answers: list[RequestTimes]


def trace(
    request_id: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST_ID", help="Its x-request-id, or the id of its completion. Default: the newest."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With a row for each token, for programs.")] = False,
    base_url: Annotated[str, typer.Option(envvar="SHOAL_URL", help="Where Shoal listens.")] = DEFAULT_URL,
) -> None:
    """Show where one request's time went: driver, wire, and each stage's queue and computing."""
    output, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        with ApiClient(endpoint_at(base_url, quiet_s=_QUIET_S)) as client:
            found = client.request_times(request_id)
        if as_json:
            output.out(json.dumps(found, indent=2))
        else:
            output.print(Group(*map(trace_page, _checked(found))))
    except ShoalError as error:
        notes.out(str(error))
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def trace_page(times: RequestTimes) -> RenderableType:
    """One answer's account."""
    num_later = max(0, times.generated_tokens - 1)
    attributed_s = sum(times.prefill) + sum(times.decode)
    share = attributed_s / times.wall_s if times.wall_s else 1.0
    head = Text(
        f"{times.request_id}\n{times.prompt_tokens} prompt tokens, {times.generated_tokens} generated, "
        f"{times.outcome or 'still running'}, {times.wall_s:.2f} s, {share:.0%} of it below.\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ms", no_wrap=True)
    for name in ("first token", "", "a later token", "longest", ""):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    for place, name in enumerate(times.columns):
        longest_s = max((row[place] for row in times.tokens), default=0.0)
        table.add_row(
            name,
            _milliseconds(times.prefill[place]),
            _share(times.prefill, place),
            _milliseconds(times.decode[place] / num_later) if num_later else "-",
            _milliseconds(longest_s) if times.tokens else "-",
            _share(times.decode, place),
            Bar(sum(times.decode) or 1.0, 0, times.decode[place], width=_BAR_WIDTH),
        )
    table.add_row(
        "all",
        _milliseconds(sum(times.prefill)),
        "",
        _milliseconds(sum(times.decode) / num_later) if num_later else "-",
        _milliseconds(max(map(sum, times.tokens))) if times.tokens else "-",
        "",
        "",
        style="bold",
    )
    return Group(head, table, Text())


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def _share(row: Sequence[float], place: int) -> str:
    whole_s = sum(row)
    return f"{row[place] / whole_s:.1%}" if whole_s else "-"


def _checked(found: dict[str, object]) -> list[RequestTimes]:
    try:
        return msgspec.convert(found, _Answers).answers
    except msgspec.ValidationError as error:
        raise ClientError(
            f"The server's trace is of another version ({error}).",
            next_step="Use the same Shoal version on both, or --json.",
        ) from None
