"""Who has joined: the policy of the head's door. Pure: messages and `now_s` in, actions out.

A machine says hello, is probed at the address that it names, starts its Ray node, and then is a member
for as long as it beats. What it carries is the keeper's business; here it only comes and goes. A machine that
comes back is a new member: nothing of the old one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from shoal.core.placement import NodeId
from shoal.wire.join_messages import (
    PROTOCOL_MINOR,
    Alive,
    Ask,
    Beat,
    CannotHave,
    EndWorker,
    FromHead,
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

PATIENCE_S = 1.5  # a member that was not heard from for so long is lost
SILENT_S = 0.8  # and after this it is given nothing new
MAX_NAME_LENGTH = 40
RESERVED_PREFIX = "local-"  # the head's own nodes


@dataclass(frozen=True, slots=True)
class Build:
    """Versions that must fit together. python: major and minor, as Ray wants it. cpu_features: what
    llama.cpp's kernels use."""

    shoal: str
    ray: str
    python: str
    llama: str
    cpu_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this to a machine."""

    peer: bytes
    message: FromHead


@dataclass(frozen=True, slots=True)
class Probe:
    """Connect to this address and expect the nonce; tell `probed`."""

    peer: bytes
    address: str
    port: int
    nonce: str


@dataclass(frozen=True, slots=True)
class SendChunk:
    peer: bytes
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class NodeJoined:
    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A member was lost: it must not be counted on from now on."""

    node: NodeId
    cause: str


@dataclass(frozen=True, slots=True)
class NodeLeaves:
    """A member asks to be relieved of what it carries; tell `left` when that is done."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """A member has an offered file at `path`, or cannot have it because of `reason`."""

    node: NodeId
    name: str
    path: str | None
    reason: str = ""


Action = Reply | Probe | SendChunk | NodeJoined | NodeGone | NodeLeaves | FileAnswer


class Phase(Enum):
    PROBED = auto()
    WELCOMED = auto()
    MEMBER = auto()


@dataclass(slots=True)
class Machine:
    """A machine at the door or behind it."""

    node: NodeId
    address: str
    heard_s: float
    phase: Phase = Phase.PROBED
    resource: str = ""
    threads: int = 1
    free_bytes: int = 0
    limit_bytes: int = 0


class Membership:
    """own: the head's versions. head: its address, for messages. same_bits: refuse other builds of
    llama.cpp and other kinds of CPU, which may round differently."""

    def __init__(self, own: Build, head: str, *, same_bits: bool) -> None:
        self._own = own
        self._head = head
        self._same_bits = same_bits
        self._cluster: tuple[str, str] | None = None
        self._machines: dict[bytes, Machine] = {}
        self._offered: dict[bytes, set[str]] = {}
        self._actions: list[Action] = []

    def open(self, ray_address: str, ray_token: str) -> None:
        """Let machines in from now on; before, they are told to try again."""
        self._cluster = (ray_address, ray_token)

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def members(self) -> tuple[Machine, ...]:
        return tuple(m for m in self._machines.values() if m.phase is Phase.MEMBER)

    def peers(self) -> tuple[bytes, ...]:
        return tuple(self._machines)

    def receive(self, peer: bytes, message: FromNode | Greeting | Garbage, now_s: float) -> None:
        match message:
            case Garbage():
                self._refuse(peer, "garbage", "That was no message of a machine that joins.")
            case Greeting() | Hello():
                self._greet(peer, message, now_s)
            case _:
                machine = self._machines.get(peer)
                if machine is None:
                    self._refuse(peer, "unknown", "The head does not know this machine any more.")
                    return
                machine.heard_s = now_s
                self._hear(peer, machine, message)

    def probed(self, peer: bytes, why_not: str | None) -> None:
        """A probe has ended. why_not: why the machine cannot be reached; None where it can."""
        machine = self._machines.get(peer)
        if machine is None or machine.phase is not Phase.PROBED or self._cluster is None:
            return
        if why_not is not None:
            del self._machines[peer]
            self._refuse(
                peer,
                "address",
                f"The head at {self._head} cannot reach {machine.node} at {machine.address}: {why_not}.",
                "Use --address with an address of this machine that the head can reach, and let no firewall "
                "stand between the two.",
            )
            return
        machine.phase = Phase.WELCOMED
        self._reply(peer, Welcome(PROTOCOL_VERSION, PROTOCOL_MINOR, self._own.shoal, *self._cluster))

    def offer(self, node: NodeId, offer: Offer) -> bool:
        """Have a member fetch a file; False where it is no member any more."""
        for peer, machine in self._machines.items():
            if machine.node == node and machine.phase is Phase.MEMBER:
                self._offered.setdefault(peer, set()).add(offer.name)
                self._reply(peer, offer)
                return True
        return False

    def end_worker(self, node: NodeId, pid: int) -> None:
        for peer, machine in self._machines.items():
            if machine.node == node:
                self._reply(peer, EndWorker(pid))

    def left(self, node: NodeId) -> None:
        """Nothing on a member is needed any more: let it go."""
        for peer, machine in list(self._machines.items()):
            if machine.node == node:
                self._forget(peer)
                self._reply(peer, Left())

    def tick(self, now_s: float) -> None:
        for peer, machine in list(self._machines.items()):
            silent_s = now_s - machine.heard_s
            if silent_s > PATIENCE_S and machine.phase is not Phase.PROBED:
                self._lose(peer, f"nothing heard from it for {silent_s:.1f} s")

    # ------------------------------------------------------------ coming in

    def _greet(self, peer: bytes, hello: Greeting | Hello, now_s: float) -> None:
        if not isinstance(hello, Hello):
            self._refuse(peer, *self._other_protocol(hello))
            return
        if peer in self._machines:  # each hello costs the head a probe
            self._refuse(peer, "garbage", "It has said hello already.")
            return
        refusal = self._other_build(hello) or self._other_cpu(hello) or self._bad_name(hello)
        if refusal is not None:
            self._refuse(peer, *refusal)
            return
        if self._cluster is None:
            self._refuse(peer, "starting", f"The head at {self._head} is still starting.")
            return
        for other_peer, other in list(self._machines.items()):
            if other.node != hello.name:
                continue
            if other.address != hello.address:
                self._refuse(
                    peer,
                    "name",
                    f"There is a machine {hello.name!r} at {other.address} already; this one is at "
                    f"{hello.address}.",
                    "Use another --name.",
                )
                return
            # The same machine: it has come back before its old self was missed.
            self._refuse(other_peer, "replaced", f"Another `shoal join` on {other.address} took its place.")
            self._lose(other_peer, "it has come back as a new incarnation")
        self._machines[peer] = Machine(NodeId(hello.name), hello.address, now_s)
        self._actions.append(Probe(peer, hello.address, hello.probe_port, hello.nonce))

    def _other_protocol(self, hello: Greeting) -> tuple[str, str, str]:
        return (
            "protocol",
            f"This machine speaks protocol {hello.protocol}.{hello.minor} (shoal {hello.shoal}), the head at "
            f"{self._head} speaks {PROTOCOL_VERSION}.{PROTOCOL_MINOR} (shoal {self._own.shoal}).",
            "Install the same version of Shoal on both.",
        )

    def _other_build(self, hello: Hello) -> tuple[str, str, str] | None:
        pairs = [("Ray", hello.ray, self._own.ray), ("Python", hello.python, self._own.python)]
        if self._same_bits:
            pairs.append(("llama-cpp-python", hello.llama, self._own.llama))
        differing = [pair for pair in pairs if pair[1] != pair[2]]
        if not differing:
            return None
        theirs = ", ".join(f"{name} {their}" for name, their, _ in differing)
        ours = ", ".join(f"{name} {our}" for name, _, our in differing)
        return (
            "build",
            f"This machine has {theirs} (shoal {hello.shoal}); the head at {self._head} has {ours} "
            f"(shoal {self._own.shoal}).",
            "Install the same versions on both.",
        )

    def _other_cpu(self, hello: Hello) -> tuple[str, str, str] | None:
        theirs, ours = set(hello.cpu_features), set(self._own.cpu_features)
        if not self._same_bits or theirs == ours:
            return None
        lists = [
            f"{whose} {', '.join(sorted(features))}"
            for whose, features in (("only the head has", ours - theirs), ("only it has", theirs - ours))
            if features
        ]
        return (
            "build",
            f"This machine's CPU rounds differently from the head's, at {self._head}: {'; '.join(lists)}. "
            "In invariant mode all must compute the same bits.",
            "Use machines of one kind, or serve without --invariant.",
        )

    def _bad_name(self, hello: Hello) -> tuple[str, str, str] | None:
        name = hello.name
        letters = name.replace("-", "").replace("_", "").replace(".", "")
        if 0 < len(name) <= MAX_NAME_LENGTH and letters.isascii() and letters.isalnum():
            if not name.startswith(RESERVED_PREFIX):
                return None
            why = f"names that begin with {RESERVED_PREFIX} are the head's own"
        else:
            why = f"a name has up to {MAX_NAME_LENGTH} letters, digits, '.', '-' and '_'"
        return (
            "name",
            f"The machine cannot be called {name[:MAX_NAME_LENGTH]!r}: {why}.",
            "Use another --name.",
        )

    # ------------------------------------------------------------ inside

    def _hear(self, peer: bytes, machine: Machine, message: FromNode) -> None:
        match message:
            case Beat(free_bytes):
                machine.free_bytes = free_bytes
                self._reply(peer, Alive())
            case Ready() if machine.phase is Phase.WELCOMED:
                machine.phase = Phase.MEMBER
                machine.resource, machine.threads = message.resource, message.threads
                machine.free_bytes, machine.limit_bytes = message.free_bytes, message.limit_bytes
                self._reply(peer, Joined(machine.node))
                self._actions.append(NodeJoined(machine.node))
            case Ask(name, offset) if name in self._offered.get(peer, ()):
                self._actions.append(SendChunk(peer, name, offset))
            case Have(name, path) if name in self._offered.get(peer, ()):
                self._actions.append(FileAnswer(machine.node, name, path))
            case CannotHave(name, reason) if name in self._offered.get(peer, ()):
                self._actions.append(FileAnswer(machine.node, name, None, reason))
            case Leave() if machine.phase is Phase.MEMBER:
                self._actions.append(NodeLeaves(machine.node))
            case Leave():
                self._forget(peer)
                self._reply(peer, Left())
            case _:
                self._refuse(peer, "garbage", "That message does not belong here.")

    def _lose(self, peer: bytes, cause: str) -> None:
        machine = self._forget(peer)
        if machine.phase is Phase.MEMBER:
            self._actions.append(NodeGone(machine.node, cause))

    def _forget(self, peer: bytes) -> Machine:
        self._offered.pop(peer, None)
        return self._machines.pop(peer)

    def _refuse(self, peer: bytes, code: str, message: str, next_step: str | None = None) -> None:
        refused = Refused(PROTOCOL_VERSION, PROTOCOL_MINOR, self._own.shoal, code, message, next_step)
        self._reply(peer, refused)

    def _reply(self, peer: bytes, message: FromHead) -> None:
        self._actions.append(Reply(peer, message))


def free_bytes(machine: Machine | None, reserved_bytes: int, now_s: float) -> int:
    """What a member can still give. reserved_bytes: what its workers may come to use. Nothing where it
    was not heard from for a moment: it may be about to be lost."""
    if machine is None or now_s - machine.heard_s > SILENT_S:
        return 0
    return max(0, min(machine.free_bytes, machine.limit_bytes - reserved_bytes))
