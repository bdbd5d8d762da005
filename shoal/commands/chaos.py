"""`shoal chaos`: break a local cluster on purpose, and show what its streams noticed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from shoal.core.errors import ConfigError, ShoalError
from shoal.gateway.client import DEFAULT_URL, endpoint_at
from shoal.lab.chaos import Chaos, ChaosConfig, Round, failed
from shoal.lab.faults import parse_kinds

_QUIET_S = 120.0


def chaos(
    kinds: Annotated[
        str, typer.Option(help="Faults to take in turn: kill, stop, leave. A node that left stays away.")
    ] = "kill,stop",
    rounds: Annotated[int, typer.Option(min=1, help="Faults, one after the other.")] = 6,
    streams: Annotated[int, typer.Option(min=1, help="Streams at once under each fault.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of each stream.")] = 64,
    seed: Annotated[int, typer.Option(help="Chooses victims and moments.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: workers are killed and frozen.")] = False,
    base_url: Annotated[str, typer.Option(envvar="SHOAL_URL", help="Where Shoal listens.")] = DEFAULT_URL,
) -> None:
    """Kill, freeze and send away workers of a cluster on this machine, under streams of its own.

    Each text is compared with the unbroken one. More than one stream at once in default mode may
    differ in near ties between tokens, so texts are compared there with `shoal serve --invariant` only.
    """
    output, notes = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        config = ChaosConfig(parse_kinds(kinds), rounds, streams, max_tokens, seed)
        if not yes:
            raise ConfigError(
                f"{rounds} times a worker of the cluster at {base_url} would be ended or frozen.",
                next_step="Add --yes if that is what you want.",
            )
        experiment = Chaos(endpoint_at(base_url, quiet_s=_QUIET_S), config, notes.out)
        try:
            done = experiment.run()
        finally:
            experiment.close()
        output.print(chaos_table(done))
        error = failed(done)
        if error is not None:
            raise error
    except ShoalError as error:
        notes.out(str(error))
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def chaos_table(rounds: Sequence[Round]) -> Table:
    """One row for each kind of fault and rung; stalls over all streams of its rounds."""
    groups: dict[tuple[str, str], list[Round]] = defaultdict(list)
    for done in rounds:
        groups[done.kind.value, done.rung].append(done)
    table = Table("fault", box=None, pad_edge=False, header_style="bold")
    table.add_column("rung", no_wrap=True)
    for name in ("count", "stall p50", "stall p95", "predicted", "a step", "text"):
        table.add_column(name, justify="right")
    for (kind, rung), group in sorted(groups.items()):
        stalls_s = [stall_s for done in group for stall_s in done.stalls_s]
        predicted_s = [done.predicted_s for done in group if done.predicted_s is not None]
        table.add_row(
            kind,
            rung,
            str(len(group)),
            _seconds(median(stalls_s)),
            _seconds(percentile_95(stalls_s)),
            _seconds(median(predicted_s)) if predicted_s else "-",
            f"{1000 * median(done.step_s for done in group):.0f} ms",
            _verdict(group),
        )
    return table


def percentile_95(values: Sequence[float]) -> float:
    """By linear interpolation; of a single value that value."""
    return values[0] if len(values) == 1 else quantiles(values, n=20, method="inclusive")[-1]


def _verdict(group: Sequence[Round]) -> str:
    if any(done.errors for done in group):
        return "broke off"
    verdicts = [done.are_right for done in group]
    if False in verdicts:
        return f"{verdicts.count(False)} wrong"
    return "not compared" if None in verdicts else "right"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
