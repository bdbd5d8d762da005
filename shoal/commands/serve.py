"""`shoal serve`: what it may be told. What it then does is in `shoal.commands.serving`."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from typing import Annotated, Literal

import typer
from rich.console import Console

from shoal.core.errors import ConfigError
from shoal.gateway.listen_address import DEFAULT_HOST, DEFAULT_PORT, parse_listen

DEFAULT_JOIN_PORT = 8001


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A .gguf file, hf://owner/repo/file.gguf, or the name of a demo model."
        ),
    ],
    nodes: Annotated[
        int | None,
        typer.Option(min=0, help="Local nodes, one slice each. Default: 3, or 1 with --join-listen."),
    ] = None,
    cuts: Annotated[
        str | None, typer.Option(help="First layers of the later slices, such as 9,18. Default: equal bytes.")
    ] = None,
    spares: Annotated[
        int, typer.Option(min=0, help="Local nodes more, without a stage: one stands by, fed every step.")
    ] = 0,
    survive: Annotated[
        int, typer.Option(min=0, help="Nodes that may be lost without loading weights, if memory allows.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of each node. Default: cores / nodes.")
    ] = None,
    ctx: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and answer together. Default: 4096.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to answer requests.")
    ] = f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    engine: Annotated[
        Literal["llama", "digest"],
        typer.Option(help="digest computes a checksum instead of language: it tests the cluster."),
    ] = "llama",
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant",
            help="Equal requests get equal answers, whatever else is running. Prompts take longer.",
        ),
    ] = False,
    repack: Annotated[
        bool | None,
        typer.Option(
            "--repack/--no-repack",
            help="Keep weights in llama.cpp's layout for this CPU, or as in the file. "
            "Default: what is faster on each machine.",
        ),
    ] = None,
    join_listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Let machines join that reach this one at ADDRESS, with a token from `shoal token create`. "
            f"Port: {DEFAULT_JOIN_PORT}.",
        ),
    ] = None,
    wait_for: Annotated[
        int, typer.Option(min=0, help="Slices more, for so many machines that will join.")
    ] = 0,
    journal_mib: Annotated[
        int,
        typer.Option(
            min=1,
            help="Memory in which each worker keeps what it has sent, so that others need not compute it "
            "again after a loss. When it is full, the oldest answers would have to be.",
        ),
    ] = 512,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen beyond this machine, without API keys.")
    ] = False,
) -> None:
    """Cut a model into slices, run each on a node, and serve it over OpenAI's API.

    Ctrl-C ends it, with everything that it started.

    \b
    shoal serve qwen2.5-coder-1.5b
    shoal serve ~/models/llama.gguf --nodes 2 --ctx 8192
    shoal serve hf://owner/repo/file.gguf --listen 127.0.0.1:9000
    """
    host, port = parse_listen(listen)
    check_reach(host, port, allow_remote=allow_remote)
    wanted_cuts = None if cuts is None else parse_cuts(cuts)
    # Imported here: `shoal --help` should not wait for a server and a cluster.
    from shoal.control.malloc_arenas import limit_malloc_arenas

    limit_malloc_arenas()
    from shoal.commands.serving import run
    from shoal.control.ray_daemon import default_state_root
    from shoal.control.start_plan import ServeConfig
    from shoal.model.paths import shoal_home

    config = ServeConfig(
        model=model,
        home=shoal_home(),
        state_root=default_state_root(),
        num_nodes=nodes,
        num_spares=spares,
        survive=survive,
        cuts=wanted_cuts,
        threads=threads,
        n_ctx=ctx,
        engine=engine,
        invariant=invariant,
        repack=repack,
        join_listen=None if join_listen is None else parse_join_listen(join_listen),
        wait_for=wait_for,
        journal_bytes=journal_mib * 2**20,
    )
    notes = Console(stderr=True, highlight=False)
    if not is_loopback(host):
        notes.print(
            f"[yellow]Anyone who reaches {host}:{port} can use this model: there are no API keys yet."
        )
    status = run(config, host, port, notes)
    # All is ended, but Python's own exit can hang for minutes in a Ray client that was interrupted
    # while it connected, or while a standby was being loaded.
    sys.stderr.flush()
    os._exit(status)


def parse_join_listen(text: str) -> tuple[str, int]:
    """The address and port at which machines may join. Raises ConfigError.

    An address of this machine, as others reach it: they are told to connect to it, so that neither a
    wildcard nor loopback will do.
    """
    from shoal.control.joined_machine import own_addresses

    host, port = parse_listen(text, DEFAULT_JOIN_PORT)
    try:
        address = str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        address = _resolve(host)
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified or parsed.is_loopback:
        raise ConfigError(
            f"--join-listen {text}: other machines cannot connect to {address}.",
            next_step=f"Use an address of this machine on your network: {', '.join(own_addresses())}.",
        )
    return address, port


def _resolve(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(
            f"--join-listen: the name {host!r} is not known here: {error.strerror}.",
            next_step="Use an address of this machine.",
        ) from error


def check_reach(host: str, port: int, *, allow_remote: bool) -> None:
    """Raise ConfigError for an address beyond this machine that was not allowed explicitly."""
    if is_loopback(host) or allow_remote:
        return
    raise ConfigError(
        f"Listening on {host} lets other machines in, and there are no API keys yet.",
        next_step=f"Use --listen 127.0.0.1:{port}, or add --allow-remote on a network that you trust.",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost counts as no."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def parse_cuts(text: str) -> tuple[int, ...]:
    """Layer numbers with commas between them. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ConfigError(
            f"--cuts {text!r} is no list of layers.",
            next_step="Write layer numbers, for example --cuts 9,18.",
        )
    return tuple(int(part) for part in parts)
