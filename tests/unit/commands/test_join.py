"""What `shoal join` and `shoal token` accept and print."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import app
from shoal.commands.join import check_platform, default_name
from shoal.core.errors import ConfigError
from shoal.core.join_token import parse_join_token


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    monkeypatch.setattr("shoal.control.ray_daemon.default_state_root", lambda: folder)
    monkeypatch.setattr("shoal.control.ray_daemon.LONGEST_DIRECTORY", 200)


def test_a_token_is_printed_alone_listed_without_its_secret_and_revoked() -> None:
    made = CliRunner().invoke(app, ["token", "create"])
    text = made.stdout.strip()
    secret = parse_join_token(text).secret_key
    listed = CliRunner().invoke(app, ["token", "list"]).output
    assert secret not in listed
    assert text not in listed
    token_id = listed.split()[0]
    assert token_id in made.stderr
    assert CliRunner().invoke(app, ["token", "revoke", token_id]).exit_code == 0
    assert CliRunner().invoke(app, ["token", "list"]).output == ""


def test_a_token_that_is_not_there_cannot_be_revoked() -> None:
    with pytest.raises(ConfigError, match="no token 'abc'"):
        CliRunner().invoke(app, ["token", "revoke", "abc"], catch_exceptions=False)


def test_joining_without_a_token_is_refused() -> None:
    outcome = CliRunner().invoke(app, ["join", "10.0.0.1"])
    assert outcome.exit_code == 2
    assert "--token" in outcome.output


@pytest.mark.parametrize("head", ["10.0.0.1:x", ":8001", "[::1", "http://10.0.0.1"])
def test_what_is_no_address_is_refused(head: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(head))):
        CliRunner().invoke(app, ["join", head, "--token", "x"], catch_exceptions=False)


def test_the_default_name_is_one_that_the_head_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Büro PC.lan")
    assert default_name() == "B-ro-PC"


def test_other_systems_are_told_where_machines_join_from() -> None:
    check_platform("linux")
    with pytest.raises(ConfigError, match="WSL2 with mirrored networking"):
        check_platform("darwin")
