"""`shoal token`: what lets another machine join this one's cluster."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

token = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke the tokens with which machines join. On the head, as the user who serves.",
)

# ZeroMQ is imported only by the commands that need it: `shoal --help` should not wait.


@token.command()
def create() -> None:
    """Print a new token. Keep it secret: whoever has it can join, and run code for the cluster."""
    from shoal.control.join_keys import create_token
    from shoal.control.ray_daemon import default_state_root

    token_id, made = create_token(default_state_root(), time.time())
    print(made.text())
    print(
        f"Token {token_id}: it is shown only now. `shoal token revoke {token_id}` ends it.", file=sys.stderr
    )


@token.command("list")
def list_tokens() -> None:
    """Show which tokens there are; not the tokens themselves."""
    from shoal.control.join_keys import load_join_keys
    from shoal.control.ray_daemon import default_state_root

    for record in load_join_keys(default_state_root()).tokens:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created_s))
        print(f"{record.id}  created {created}")


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `shoal token list` shows it.")],
) -> None:
    """Let nobody join with a token any more. Machines that have joined stay: see `shoal leave`."""
    from shoal.control.join_keys import revoke_token
    from shoal.control.ray_daemon import default_state_root

    revoke_token(default_state_root(), token_id)
    print(f"Token {token_id} opens nothing any more.")
