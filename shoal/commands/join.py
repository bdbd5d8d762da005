"""`shoal join`: what it may be told. What it then does is in `shoal.commands.joining`."""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import Annotated

import typer
from rich.console import Console

from shoal.commands.serve import DEFAULT_JOIN_PORT
from shoal.core.errors import ConfigError
from shoal.core.join_token import parse_join_token
from shoal.gateway.listen_address import parse_listen


def join(
    head: Annotated[
        str, typer.Argument(metavar="HOST[:PORT]", help="What `shoal serve` printed on the head.")
    ],
    token: Annotated[
        str,
        typer.Option(envvar="SHOAL_JOIN_TOKEN", help="From `shoal token create` on the head; - reads it."),
    ],
    name: Annotated[str | None, typer.Option(help="This machine's name. Default: its host name.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Where the head and others reach this machine. Default: as it reaches the head."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads. Default: the physical cores.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", min=0.0, help="The most memory to give. Default: what is free."),
    ] = None,
) -> None:
    """Give this machine to a head on the network, until Ctrl-C.

    It takes a slice of the model, or stands by for one. Ctrl-C hands over what it carries and ends; a
    second Ctrl-C ends at once. Linux only, or Windows through WSL2 with mirrored networking.

    \b
    shoal join 192.168.1.10 --token shoal1_...
    """
    # Imported here: `shoal --help` should not wait for ZeroMQ and psutil.
    from shoal.commands.joining import run
    from shoal.control.joined_machine import JoinConfig
    from shoal.control.node_memory import usable_memory_bytes
    from shoal.control.ray_daemon import default_state_root
    from shoal.control.start_plan import physical_cores
    from shoal.model.paths import shoal_home

    host, port = parse_listen(head, DEFAULT_JOIN_PORT)
    config = JoinConfig(
        host=host,
        port=port,
        token=parse_join_token(sys.stdin.readline() if token == "-" else token),
        name=default_name() if name is None else name,
        address=address,
        threads=physical_cores() if threads is None else threads,
        memory_bytes=usable_memory_bytes() if memory is None else int(memory * 2**30),
        home=shoal_home(),
        state_root=default_state_root(),
    )
    check_platform(sys.platform)
    status = run(config, Console(stderr=True, highlight=False))
    if status:
        sys.stderr.flush()
        os._exit(status)


def default_name() -> str:
    """The host name, with what a name may not have replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname().partition(".")[0])[:40] or "machine"


def check_platform(platform: str) -> None:
    """Raise ConfigError where Ray forms no clusters."""
    if platform != "linux":
        raise ConfigError(
            f"Machines join from Linux, and this is {platform}: Ray supports no clusters on native Windows "
            "or macOS.",
            next_step="On Windows use WSL2 with mirrored networking.",
        )
