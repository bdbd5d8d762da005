"""What a person is told whose machine may not join: what failed, with both sides named."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from shoal.control import joined_machine
from shoal.control.joined_machine import JoinConfig, JoinedMachine, TryAgain
from shoal.core.errors import ConfigError
from shoal.core.join_token import JoinToken
from shoal.wire.curve import new_keys
from shoal.wire.join_messages import Hello
from tests.support.open_door import OpenDoor, open_door


@pytest.fixture
def opened() -> Iterator[OpenDoor]:
    with open_door() as made:
        yield made


def refused(config: JoinConfig) -> str:
    machine = JoinedMachine(config)
    try:
        with pytest.raises(ConfigError) as caught:
            machine.join()
    finally:
        machine.end()
    return str(caught.value)


def test_a_token_that_the_head_does_not_know(opened: OpenDoor) -> None:
    token = JoinToken(opened.token.head_key, new_keys()[1])
    assert f"127.0.0.1 port {opened.port} refuses this token" in refused(
        replace(opened.config(), token=token)
    )


def test_a_token_of_another_head(opened: OpenDoor) -> None:
    token = JoinToken(new_keys()[0], opened.token.secret_key)
    said = refused(replace(opened.config(), token=token))
    assert f"What listens on 127.0.0.1 port {opened.port} is not the head that this token is of" in said


def test_a_name_that_is_reserved(opened: OpenDoor) -> None:
    assert "--name" in refused(opened.config(name="local-0"))


def test_an_address_that_is_not_this_machines(opened: OpenDoor) -> None:
    said = refused(opened.config(address="192.0.2.77"))
    assert "This machine has no address 192.0.2.77: cannot assign requested address. Its addresses:" in said


def test_an_address_at_which_the_head_finds_another(
    opened: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = JoinedMachine._hello

    def with_another_nonce(machine: JoinedMachine, address: str, probed: joined_machine._Probed) -> Hello:
        return msgspec.structs.replace(hello(machine, address, probed), nonce="another")

    monkeypatch.setattr(JoinedMachine, "_hello", with_another_nonce)
    said = refused(opened.config(address="127.0.0.1"))
    assert f"The head at {opened.door.address} cannot reach pc at 127.0.0.1: another machine answers" in said


def test_a_head_over_ipv6_is_reached_and_named_in_brackets() -> None:
    with open_door("::1") as opened:
        assert opened.door.address.startswith("[::1]:")
        assert "The machine cannot be called 'local-0'" in refused(opened.config(name="local-0", host="::1"))


def test_nobody_listening_names_both_sides(opened: OpenDoor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TryAgain, match=rf"127\.0\.0\.1 port {port} cannot be reached from this machine \("):
        JoinedMachine(replace(opened.config(), port=port)).join()


def test_a_name_that_nobody_knows(opened: OpenDoor) -> None:
    said = refused(opened.config(host="no-such-host.invalid"))
    assert "'no-such-host.invalid' is not known here" in said
