"""The keys of the head's door: its own, and the public halves of the tokens that were given out.

One file below the state root, mode 0600. It holds no token: whoever reads it cannot join. `shoal token`
writes it, a running head reads it again when it has changed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.control.ray_daemon import make_state_root
from shoal.core.errors import ClusterError, ConfigError
from shoal.core.join_token import JoinToken
from shoal.wire.curve import new_keys

KEYS_FILE = "join_keys.json"
ID_BYTES = 3


class TokenRecord(msgspec.Struct, frozen=True):
    """A token that was given out. created_s: since the epoch."""

    id: str
    public_key: str
    created_s: float


class JoinKeys(msgspec.Struct, frozen=True):
    """The door's own key pair, and the tokens that open it."""

    public_key: str
    secret_key: str
    tokens: tuple[TokenRecord, ...] = ()


def keys_path(state_root: Path) -> Path:
    return state_root / KEYS_FILE


def load_join_keys(state_root: Path) -> JoinKeys:
    """The keys as they are now; made on first use. Raises ClusterError, ConfigError."""
    return _change(state_root, lambda keys: keys)


def create_token(state_root: Path, now_s: float) -> tuple[str, JoinToken]:
    """A new token and its id. It is not kept: it can be shown only now."""
    public, secret = new_keys()
    record = TokenRecord(secrets.token_hex(ID_BYTES), public, now_s)
    keys = _change(
        state_root, lambda keys: JoinKeys(keys.public_key, keys.secret_key, (*keys.tokens, record))
    )
    return record.id, JoinToken(keys.public_key, secret)


def revoke_token(state_root: Path, token_id: str) -> None:
    """From now on nobody joins with it. Raises ConfigError where there is none of that id."""

    def without(keys: JoinKeys) -> JoinKeys:
        left = tuple(record for record in keys.tokens if record.id != token_id)
        if len(left) == len(keys.tokens):
            known = ", ".join(record.id for record in keys.tokens) or "none"
            raise ConfigError(f"There is no token {token_id!r} here.", next_step=f"Tokens: {known}.")
        return JoinKeys(keys.public_key, keys.secret_key, left)

    _change(state_root, without)


def _change(state_root: Path, change: Callable[[JoinKeys], JoinKeys]) -> JoinKeys:
    """Read, change and write under a lock, so that two commands do not undo each other."""
    make_state_root(state_root)
    path = keys_path(state_root)
    with (state_root / f".{KEYS_FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _read(path) if path.exists() else None
        after = change(JoinKeys(*new_keys()) if before is None else before)
        if after != before:
            _write(path, after)
    return after


def _read(path: Path) -> JoinKeys:
    try:
        return msgspec.json.decode(path.read_bytes(), type=JoinKeys)
    except (msgspec.DecodeError, OSError) as error:
        raise ClusterError(
            f"The keys in {path} cannot be read: {error}.",
            next_step="Remove the file; all tokens are then void, and `shoal token create` makes new ones.",
        ) from error


def _write(path: Path, keys: JoinKeys) -> None:
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(msgspec.json.encode(keys))
    scratch.replace(path)
