"""`shoal bench`: how fast a running cluster is, measured through its API."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from shoal.commands import api_load
from shoal.core.errors import ConfigError, ShoalError
from shoal.gateway.client import DEFAULT_URL, ApiClient, ClientError, endpoint_at

STREAMS = (1, 2, 8)
PROMPTS = (256, 1024, 2048)
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One thing measured: the median of `values` and all of them, in `unit`."""

    name: str
    unit: str
    median: float
    values: tuple[float, ...]


def bench(
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 3,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 48,
    as_json: Annotated[bool, typer.Option("--json", help="For programs, with every run.")] = False,
    base_url: Annotated[str, typer.Option(envvar="SHOAL_URL", help="Where Shoal listens.")] = DEFAULT_URL,
) -> None:
    """Measure a running cluster: answers alone and together, long prompts, time to first token.

    It takes some minutes on CPUs, and everything else that the cluster does meanwhile counts.
    """
    output, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        endpoint = endpoint_at(base_url)
        with ApiClient(endpoint) as client:
            models = client.models()
        if not models:
            raise ClientError("The server lists no model.")
        rows = asyncio.run(_measure(endpoint.server_root, models[0], repeats, tokens, notes))
        if as_json:
            output.out(json.dumps({"model": models[0], "rows": [asdict(row) for row in rows]}, indent=2))
        else:
            output.print(bench_table(models[0], rows))
    except ShoalError as error:
        notes.out(str(error))
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def bench_table(model: str, rows: Sequence[BenchRow]) -> Table:
    table = Table("measured", title=model, title_justify="left", box=None, pad_edge=False)
    for name in ("median", "least", "most"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        figures = (row.median, min(row.values), max(row.values))
        table.add_row(row.name, *(f"{figure:.2f}" for figure in figures), row.unit)
    return table


async def _measure(root: str, model: str, repeats: int, tokens: int, notes: Console) -> list[BenchRow]:
    generator = random.Random()
    rows = []
    async with httpx.AsyncClient(base_url=root, timeout=PATIENCE_S) as http:
        await api_load.decode(http, model, 1, num_tokens=8, generator=generator)  # wakes everything up
        for num_streams in STREAMS:
            notes.print(f"{num_streams} at once ...", style="dim")
            rates = [
                api_load.tokens_per_s(
                    await api_load.decode(http, model, num_streams, num_tokens=tokens, generator=generator)
                )
                for _ in range(repeats)
            ]
            rows.append(_row(f"answers, {num_streams} at once", "tok/s", rates))
        for num_tokens in PROMPTS:
            notes.print(f"a prompt of {num_tokens:,} tokens ...", style="dim")
            try:
                firsts = [
                    (await api_load.prefill(http, model, num_tokens, generator=generator)).first_token_s
                    for _ in range(repeats)
                ]
            except ClientError as error:
                notes.print(f"skipped: {error}", style="dim")
                continue
            rows.append(_row(f"first token behind {num_tokens:,}", "s", firsts))
            rows.append(_row(f"prompt of {num_tokens:,}", "tok/s", [num_tokens / s for s in firsts]))
    return rows


def _row(name: str, unit: str, values: Sequence[float]) -> BenchRow:
    return BenchRow(name, unit, statistics.median(values), tuple(values))
