"""Who is let in, who is told why not, and who counts as gone. Messages in, actions out."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from shoal.control.membership import (
    PATIENCE_S,
    SILENT_S,
    Action,
    Build,
    FileAnswer,
    Machine,
    Membership,
    NodeGone,
    NodeJoined,
    NodeLeaves,
    Probe,
    Reply,
    SendChunk,
    free_bytes,
)
from shoal.core.placement import NodeId
from shoal.wire.join_messages import (
    Alive,
    Ask,
    Beat,
    EndWorker,
    FromNode,
    Garbage,
    Greeting,
    Have,
    Hello,
    Joined,
    Leave,
    Left,
    Offer,
    Ready,
    Refused,
    Welcome,
)
from shoal.wire.messages import PROTOCOL_VERSION

BUILD = Build("1.2.3", "2.60.0", "3.11", "0.3.36")
HELLO = Hello(PROTOCOL_VERSION, 0, "1.2.3", "2.60.0", "3.11", "0.3.36", "pc", "10.0.0.2", 5000, "nonce")
READY = Ready("shoal-pc-1", 4, 1000, 600)
OFFER = Offer("a.gguf", 10, "digest")


@dataclass
class Door:
    """The policy with a clock, and the actions that the last call caused."""

    membership: Membership = field(
        default_factory=lambda: Membership(BUILD, "10.0.0.1:8001", same_bits=False)
    )
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.membership.open("10.0.0.1:6379", "secret")

    def hear(self, message: FromNode | Greeting | Garbage, peer: bytes = b"1") -> list[Action]:
        self.membership.receive(peer, message, self.now_s)
        return self.membership.take_actions()

    def probed(self, why_not: str | None = None, peer: bytes = b"1") -> list[Action]:
        self.membership.probed(peer, why_not)
        return self.membership.take_actions()

    def wait(self, duration_s: float) -> list[Action]:
        self.now_s += duration_s
        self.membership.tick(self.now_s)
        return self.membership.take_actions()

    def let_in(self, hello: Hello = HELLO, peer: bytes = b"1") -> None:
        self.hear(hello, peer)
        self.probed(peer=peer)
        self.hear(READY, peer)


def refusal(actions: list[Action], peer: bytes = b"1") -> Refused:
    [action] = actions
    assert isinstance(action, Reply)
    assert action.peer == peer
    assert isinstance(action.message, Refused)
    return action.message


def test_a_machine_is_probed_before_it_is_told_how_to_take_part() -> None:
    door = Door()
    assert door.hear(HELLO) == [Probe(b"1", "10.0.0.2", 5000, "nonce")]
    assert door.probed() == [Reply(b"1", Welcome(PROTOCOL_VERSION, 0, "1.2.3", "10.0.0.1:6379", "secret"))]
    assert door.membership.members() == ()
    assert door.hear(READY) == [Reply(b"1", Joined("pc")), NodeJoined(NodeId("pc"))]
    [member] = door.membership.members()
    assert (member.address, member.resource, member.threads) == ("10.0.0.2", "shoal-pc-1", 4)


def test_a_machine_that_cannot_be_reached_is_told_both_addresses_and_forgotten() -> None:
    door = Door()
    door.hear(HELLO)
    refused = refusal(door.probed("no answer within 1.5 s"))
    assert refused.code == "address"
    assert refused.message == "The head at 10.0.0.1:8001 cannot reach pc at 10.0.0.2: no answer within 1.5 s."
    assert refusal(door.hear(READY)).code == "unknown"


def test_another_protocol_is_refused_naming_both_versions() -> None:
    refused = refusal(Door().hear(Greeting(PROTOCOL_VERSION + 1, 4, "9.9.9")))
    assert refused.code == "protocol"
    assert f"protocol {PROTOCOL_VERSION + 1}.4 (shoal 9.9.9)" in refused.message
    assert f"speaks {PROTOCOL_VERSION}.0 (shoal 1.2.3)" in refused.message


def test_another_minor_protocol_and_another_shoal_are_let_in() -> None:
    hello = msgspec.structs.replace(HELLO, minor=7, shoal="1.9.0")
    assert isinstance(Door().hear(hello)[0], Probe)


@pytest.mark.parametrize(
    ("changed", "theirs", "ours"),
    [({"ray": "2.61.0"}, "Ray 2.61.0", "Ray 2.60.0"), ({"python": "3.12"}, "Python 3.12", "Python 3.11")],
)
def test_a_build_that_ray_would_refuse_is_refused_naming_both(
    changed: dict[str, str], theirs: str, ours: str
) -> None:
    refused = refusal(Door().hear(msgspec.structs.replace(HELLO, **changed)))
    assert refused.code == "build"
    assert theirs in refused.message
    assert ours in refused.message


def test_another_llama_cpp_matters_only_where_bits_are_promised() -> None:
    hello = msgspec.structs.replace(HELLO, llama="0.3.1")
    assert isinstance(Door().hear(hello)[0], Probe)
    strict = Door(Membership(BUILD, "h", same_bits=True))
    assert "llama-cpp-python 0.3.1" in refusal(strict.hear(hello)).message


def test_another_kind_of_cpu_matters_only_where_bits_are_promised() -> None:
    build = Build("1.2.3", "2.60.0", "3.11", "0.3.36", ("AVX2", "AVX512", "FMA"))
    hello = msgspec.structs.replace(HELLO, cpu_features=("AVX2", "FMA", "SVE"))
    assert isinstance(Door(Membership(build, "h", same_bits=False)).hear(hello)[0], Probe)
    strict = Door(Membership(build, "h", same_bits=True))
    refused = refusal(strict.hear(hello))
    assert refused.code == "build"
    assert "only the head has AVX512; only it has SVE" in refused.message
    same = msgspec.structs.replace(HELLO, cpu_features=("FMA", "AVX512", "AVX2"))
    assert isinstance(strict.hear(same, b"2")[0], Probe)


@pytest.mark.parametrize("name", ["", "local-3", "a b", "x" * 41, "ü", "a/b"])
def test_names_that_would_confuse_are_refused(name: str) -> None:
    assert refusal(Door().hear(msgspec.structs.replace(HELLO, name=name))).code == "name"


def test_a_name_that_another_machine_has_is_refused_naming_both() -> None:
    door = Door()
    door.let_in()
    refused = refusal(door.hear(msgspec.structs.replace(HELLO, address="10.0.0.9"), b"2"), b"2")
    assert refused.code == "name"
    assert "10.0.0.2" in refused.message
    assert "10.0.0.9" in refused.message


def test_a_machine_that_comes_back_takes_the_place_of_its_old_self() -> None:
    door = Door()
    door.let_in()
    replaced, gone, probe = door.hear(HELLO, b"2")
    assert isinstance(replaced, Reply)
    assert isinstance(replaced.message, Refused)
    assert (replaced.peer, replaced.message.code) == (b"1", "replaced")
    assert gone == NodeGone(NodeId("pc"), "it has come back as a new incarnation")
    assert isinstance(probe, Probe)
    assert refusal(door.hear(Beat(1))).code == "unknown"


def test_a_machine_says_hello_once() -> None:
    door = Door()
    door.hear(HELLO)
    assert refusal(door.hear(HELLO)).code == "garbage"


def test_before_the_head_is_up_machines_are_told_to_try_again() -> None:
    door = Door()
    door.membership = Membership(BUILD, "h", same_bits=False)
    assert refusal(door.hear(HELLO)).code == "starting"


def test_a_member_that_beats_stays_and_one_that_falls_silent_is_gone() -> None:
    door = Door()
    door.let_in()
    for _ in range(5):
        assert door.wait(PATIENCE_S) == []
        assert door.hear(Beat(900)) == [Reply(b"1", Alive())]
    [gone] = door.wait(PATIENCE_S + 0.1)
    assert gone == NodeGone(NodeId("pc"), "nothing heard from it for 1.6 s")
    assert refusal(door.hear(Beat(900))).code == "unknown"


def test_one_that_falls_silent_before_it_is_a_member_is_no_loss() -> None:
    door = Door()
    door.hear(HELLO)
    door.probed()
    assert door.wait(PATIENCE_S + 0.1) == []
    assert refusal(door.hear(READY)).code == "unknown"


def test_a_member_fetches_what_it_was_offered_and_nothing_else() -> None:
    door = Door()
    door.let_in()
    assert refusal(door.hear(Ask("a.gguf", 0))).code == "garbage"
    assert door.membership.offer(NodeId("pc"), OFFER)
    assert door.membership.take_actions() == [Reply(b"1", OFFER)]
    assert door.hear(Ask("a.gguf", 5)) == [SendChunk(b"1", "a.gguf", 5)]
    assert door.hear(Have("a.gguf", "/x/a.gguf")) == [FileAnswer(NodeId("pc"), "a.gguf", "/x/a.gguf")]
    assert refusal(door.hear(Ask("b.gguf", 0))).code == "garbage"
    assert not door.membership.offer(NodeId("other"), OFFER)


def test_a_member_that_asks_to_leave_is_let_go_when_it_carries_nothing() -> None:
    door = Door()
    door.let_in()
    assert door.hear(Leave()) == [NodeLeaves(NodeId("pc"))]
    door.membership.end_worker(NodeId("pc"), 77)
    assert door.membership.take_actions() == [Reply(b"1", EndWorker(77))]
    door.membership.left(NodeId("pc"))
    assert door.membership.take_actions() == [Reply(b"1", Left())]
    assert door.wait(100.0) == []


def test_garbage_and_messages_out_of_turn_hurt_nobody() -> None:
    door = Door()
    door.let_in()
    assert refusal(door.hear(Garbage(), b"2"), b"2").code == "garbage"
    assert refusal(door.hear(READY)).code == "garbage"
    assert refusal(door.hear(Have("x", "y"), b"3"), b"3").code == "unknown"
    assert len(door.membership.members()) == 1


def test_what_a_member_can_give_is_bounded_by_what_it_has_and_what_it_may() -> None:
    machine = Machine(NodeId("pc"), "10.0.0.2", heard_s=10.0, free_bytes=500, limit_bytes=600)
    assert free_bytes(machine, 0, 10.0) == 500
    assert free_bytes(machine, 400, 10.0) == 200
    assert free_bytes(machine, 900, 10.0) == 0
    assert free_bytes(machine, 0, 10.1 + SILENT_S) == 0, "it may be about to be lost"
    assert free_bytes(None, 0, 10.0) == 0
