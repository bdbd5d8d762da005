"""`shoal leave`: let a machine go without anybody noticing."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from shoal.core.errors import ConfigError, ShoalError
from shoal.gateway.client import DEFAULT_URL, ApiClient, ClientError, endpoint_at

_QUIET_S = 10.0
_POLL_S = 0.2


def leave(
    node: Annotated[str, typer.Argument(help="The machine's name, as `shoal status` shows it.")],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the hand-over.")] = 120.0,
    base_url: Annotated[str, typer.Option(envvar="SHOAL_URL", help="Where Shoal listens.")] = DEFAULT_URL,
) -> None:
    """Hand over what a machine carries, and wait until it is free to go.

    Its sessions move to another machine with their state: no token is computed again.
    """
    notes = Console(stderr=True, highlight=False)
    try:
        with ApiClient(endpoint_at(base_url, quiet_s=_QUIET_S)) as client:
            client.leave(node)
            with notes.status(f"Node {node} hands over ..."):
                _wait_until_gone(client, node, time.monotonic() + timeout)
        notes.print(f"Node {node} carries nothing any more: it may be switched off.")
    except ShoalError as error:
        notes.out(str(error))
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def _wait_until_gone(client: ApiClient, node: str, give_up_s: float) -> None:
    while _carries(client, node):
        if time.monotonic() > give_up_s:
            raise ClientError(
                f"Node {node} still carries layers: no other machine can hold them.",
                next_step="See `shoal status`; add a machine, or switch it off anyway.",
            )
        time.sleep(_POLL_S)


def _carries(client: ApiClient, node: str) -> bool:
    workers = client.cluster_status()["workers"]
    assert isinstance(workers, list)  # cluster_status has checked it
    return any(isinstance(worker, dict) and worker.get("node") == node for worker in workers)
