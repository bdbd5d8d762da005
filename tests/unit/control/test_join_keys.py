"""Tokens are kept nowhere, opened by the head's file alone, and revoked for good."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.control.join_keys import create_token, keys_path, load_join_keys, revoke_token
from shoal.core.errors import ClusterError, ConfigError
from shoal.wire.curve import public_key_of


@pytest.fixture
def state_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        yield Path(name)


def test_a_token_holds_the_heads_key_and_the_head_the_tokens(state_root: Path) -> None:
    token_id, token = create_token(state_root, now_s=5.0)
    keys = load_join_keys(state_root)
    [record] = keys.tokens
    assert (record.id, record.created_s) == (token_id, 5.0)
    assert token.head_key == keys.public_key
    assert public_key_of(token.secret_key) == record.public_key


def test_the_file_holds_no_token_and_is_nobody_elses(state_root: Path) -> None:
    _, token = create_token(state_root, now_s=5.0)
    path = keys_path(state_root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.secret_key not in path.read_text()


def test_the_heads_key_stays_and_revoking_takes_one_token_away(state_root: Path) -> None:
    first_id, first = create_token(state_root, now_s=1.0)
    second_id, second = create_token(state_root, now_s=2.0)
    assert first.head_key == second.head_key
    revoke_token(state_root, first_id)
    assert [record.id for record in load_join_keys(state_root).tokens] == [second_id]
    with pytest.raises(ConfigError, match=f"no token '{first_id}' here. Tokens: {second_id}"):
        revoke_token(state_root, first_id)


def test_a_damaged_file_is_named(state_root: Path) -> None:
    create_token(state_root, now_s=1.0)
    keys_path(state_root).write_text("{")
    with pytest.raises(ClusterError, match=r"join_keys\.json cannot be read"):
        load_join_keys(state_root)
