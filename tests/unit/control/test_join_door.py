"""The head's door and a machine's link on real sockets: who gets in, what is fetched, who is missed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from shoal.control.build import own_build
from shoal.control.join_door import JoinDoor
from shoal.control.join_keys import revoke_token
from shoal.control.join_link import Happening, JoinLink
from shoal.core.errors import ClusterError, ConfigError
from shoal.core.join_token import JoinToken
from shoal.core.placement import NodeId
from shoal.model.store import SliceStore
from shoal.wire.curve import SecureContext, new_keys, public_key_of, zmq_address
from shoal.wire.join import LinkNews
from shoal.wire.join_messages import (
    CHUNK_BYTES,
    Closing,
    Hello,
    Joined,
    Leave,
    Left,
    Ready,
    Refused,
    Welcome,
    decode_from_head,
)
from shoal.wire.messages import PROTOCOL_VERSION
from tests.support.open_door import OpenDoor, open_door
from tests.support.processes import wait_until
from tests.support.tiny_models import write_tiny_model

DEADLINE_S = 10.0
PC = NodeId("pc")


@pytest.fixture
def opened() -> Iterator[OpenDoor]:
    with open_door() as made:
        yield made


class Machine:
    """A link, used without a Ray node."""

    def __init__(self, opened: OpenDoor, token: JoinToken, folder: Path) -> None:
        self.ended: list[int] = []
        self.store = SliceStore(folder)
        self.link = JoinLink(token, "127.0.0.1", opened.port, self.store, lambda: 1000, self.ended.append)

    def next(self) -> Happening:
        return self.link.happenings.get(timeout=DEADLINE_S)

    def say_hello(self, *, protocol: int = PROTOCOL_VERSION, minor: int = 0) -> None:
        build = own_build()
        versions = (protocol, minor, build.shoal, build.ray, build.python, build.llama)
        with Answering("nonce") as port:
            self.link.send(Hello(*versions, "pc", "127.0.0.1", port, "nonce"))
            self.welcomed = self.next()

    def join(self) -> None:
        self.say_hello()
        assert isinstance(self.welcomed, Welcome)
        self.link.send(Ready("resource", 2, 1000, 5000))
        assert self.next() == Joined("pc")


class Answering:
    """Sends a text to whoever connects."""

    def __init__(self, text: str) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._text = text
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._text.encode())


@pytest.fixture
def machine_of(opened: OpenDoor, tmp_path: Path) -> Iterator[Callable[[JoinToken], Machine]]:
    made: list[Machine] = []

    def make(token: JoinToken) -> Machine:
        made.append(Machine(opened, token, tmp_path / f"store-{len(made)}"))
        return made[-1]

    yield make
    for machine in made:
        machine.link.close()


@pytest.fixture
def member(opened: OpenDoor, machine_of: Callable[[JoinToken], Machine]) -> Machine:
    machine = machine_of(opened.token)
    machine.join()
    assert opened.events.get(timeout=DEADLINE_S) == ("joined", PC)
    return machine


def test_a_machine_with_the_token_is_let_in_and_missed_when_it_falls_silent(
    opened: OpenDoor, member: Machine
) -> None:
    known = opened.door.member(PC)
    assert known is not None
    assert (known.address, known.resource, known.threads) == ("127.0.0.1", "resource", 2)
    assert opened.door.free_bytes(PC, reserved_bytes=400) == 1000
    assert opened.door.free_bytes(PC, reserved_bytes=4900) == 100
    member.link.close()
    assert opened.events.get(timeout=DEADLINE_S) == ("gone", PC)
    assert opened.door.member(PC) is None


def test_an_answer_from_another_machine_at_the_address_does_not_count(
    opened: OpenDoor, machine_of: Callable[[JoinToken], Machine]
) -> None:
    machine = machine_of(opened.token)
    build = own_build()
    with Answering("somebody else") as port:
        versions = (PROTOCOL_VERSION, 0, build.shoal, build.ray, build.python, build.llama)
        machine.link.send(Hello(*versions, "pc", "127.0.0.1", port, "nonce"))
        refused = machine.next()
    assert isinstance(refused, Refused)
    assert "cannot reach pc at 127.0.0.1: another machine answers there" in refused.message


@pytest.mark.parametrize(("major", "minor", "is_welcome"), [(1, 0, False), (0, 1, True)])
def test_another_major_version_is_refused_and_another_minor_works(
    opened: OpenDoor,
    machine_of: Callable[[JoinToken], Machine],
    major: int,
    minor: int,
    is_welcome: bool,
) -> None:
    machine = machine_of(opened.token)
    machine.say_hello(protocol=PROTOCOL_VERSION + major, minor=minor)
    assert isinstance(machine.welcomed, Welcome) == is_welcome
    if not is_welcome:
        assert isinstance(machine.welcomed, Refused)
        assert machine.welcomed.code == "protocol"


def test_a_token_of_nobody_opens_nothing(
    opened: OpenDoor, machine_of: Callable[[JoinToken], Machine]
) -> None:
    machine = machine_of(JoinToken(opened.token.head_key, new_keys()[1]))
    assert machine.next() is LinkNews.TOKEN_REFUSED


def test_a_revoked_token_opens_nothing_more_but_its_machines_stay(
    opened: OpenDoor, member: Machine, machine_of: Callable[[JoinToken], Machine]
) -> None:
    revoke_token(opened.folder / "h", opened.token_id)

    def is_refused() -> bool:
        machine = machine_of(opened.token)
        with Answering("nonce"):
            machine.link.send(Leave())
            happening = machine.next()
        return happening is LinkNews.TOKEN_REFUSED

    wait_until(is_refused, deadline_s=DEADLINE_S, what="the token to be refused")
    assert opened.door.member(PC) is not None


def test_a_head_with_another_key_is_not_talked_to(
    opened: OpenDoor, machine_of: Callable[[JoinToken], Machine]
) -> None:
    machine = machine_of(JoinToken(new_keys()[0], opened.token.secret_key))
    assert machine.next() is LinkNews.BROKEN


def test_a_member_fetches_a_file_in_chunks_and_keeps_it(
    opened: OpenDoor, member: Machine, tmp_path: Path
) -> None:
    source = write_tiny_model(tmp_path / "slice.gguf", "qwen2")
    padded = source.read_bytes()
    with source.open("ab") as file:
        file.write(bytes(11 * CHUNK_BYTES + 5 - len(padded)))
    path = opened.door.fetch(PC, source)
    assert path.parent == member.store.root
    assert path.read_bytes() == source.read_bytes()
    assert opened.door.fetch(PC, source) == path


def test_a_fetch_fails_when_the_machine_is_lost(opened: OpenDoor, member: Machine, tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "slice.gguf", "qwen2")
    member.link.close()
    with pytest.raises(ClusterError, match=r"machine pc is lost|has gone"):
        opened.door.fetch(PC, source)


def test_a_file_that_is_no_slice_is_refused_with_the_reason(
    opened: OpenDoor, member: Machine, tmp_path: Path
) -> None:
    source = tmp_path / "secrets.txt"
    source.write_text("not for a store of slices")
    with pytest.raises(ClusterError, match=r"pc cannot hold secrets\.txt: .* is no name of a slice"):
        opened.door.fetch(PC, source)


def test_a_member_is_told_to_end_workers_and_when_it_may_go(opened: OpenDoor, member: Machine) -> None:
    opened.door.end_worker(PC, 4711)
    wait_until(lambda: member.ended == [4711], deadline_s=DEADLINE_S, what="the worker to be ended")
    member.link.send(Leave())
    assert opened.events.get(timeout=DEADLINE_S) == ("leaves", PC)
    opened.door.left(PC)
    assert member.next() == Left()


def test_a_door_that_closes_says_so_to_its_members(tmp_path: Path) -> None:
    with open_door() as opened:
        machine = Machine(opened, opened.token, tmp_path)
        machine.join()
        opened.events.get(timeout=DEADLINE_S)
    try:
        assert machine.next() == Closing()
    finally:
        machine.link.close()


@pytest.mark.parametrize("frame", [b"", b"\xff" * 100, bytes(2**20), b"\x92\xa5hello\x01"])
def test_garbage_from_one_who_has_a_token_hurts_nobody(
    opened: OpenDoor, member: Machine, frame: bytes
) -> None:
    secure = SecureContext((public_key_of(opened.token.secret_key), opened.token.secret_key))
    try:
        with secure.client_socket(zmq.DEALER, opened.token.head_key) as socket:
            socket.connect(zmq_address("127.0.0.1", opened.port))
            socket.send(frame)
            if len(frame) < 2**16:  # a longer one ends the connection
                assert socket.poll(1000 * DEADLINE_S)
                refused = decode_from_head(socket.recv())
                assert isinstance(refused, Refused)
                assert refused.code == "garbage"
            socket.send_multipart([b"a", b"b"])
    finally:
        secure.close()
    member.link.send(Leave())  # the door still works
    assert opened.events.get(timeout=DEADLINE_S) == ("leaves", PC)


def test_a_port_that_is_taken_is_named(opened: OpenDoor) -> None:
    with pytest.raises(ConfigError, match=rf"on 127\.0\.0\.1 port {opened.port}: address already in use"):
        JoinDoor(opened.folder / "h", "127.0.0.1", opened.port, own_build(), same_bits=False)


def test_an_address_that_is_not_ours_is_named(opened: OpenDoor) -> None:
    with pytest.raises(ConfigError, match=r"on 192\.0\.2\.77 port 8001: cannot assign requested address"):
        JoinDoor(opened.folder / "h", "192.0.2.77", 8001, own_build(), same_bits=False)
