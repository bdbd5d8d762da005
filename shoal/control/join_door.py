"""The head's door at work: membership's policy on a real socket, and the files that members fetch.

One thread owns the policy and the socket. The keeper is told who comes and goes; the starter of workers
asks here where a member's workers listen, and has it fetch what it lacks.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from shoal.control.join_keys import keys_path, load_join_keys
from shoal.control.membership import (
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
from shoal.core.awake_clock import AwakeClock
from shoal.core.errors import ClusterError, ShoalError
from shoal.core.placement import NodeId
from shoal.wire.curve import SecureContext
from shoal.wire.join import JoinServer
from shoal.wire.join_messages import CHUNK_BYTES, Chunk, Closing, Offer

TICK_S = 0.1
PROBE_DEADLINE_S = 1.5
FETCH_DEADLINE_S = 3600.0  # 100 GB at 30 MB/s
KEYS_AGAIN_S = 0.5  # a token that was revoked opens nothing after this long
FAREWELL_S = 0.3
STOP_DEADLINE_S = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DoorEvents:
    """Who is told, in the door's thread: they must not wait."""

    joined: Callable[[NodeId], None]
    gone: Callable[[NodeId, str], None]
    leaves: Callable[[NodeId], None]


class JoinDoor:
    """address, port: where machines that join connect to. Binds at once, answers from `start` on, lets
    in from `open` on.

    Raises ConfigError where it cannot listen there, ClusterError where its keys cannot be read.
    """

    def __init__(self, state_root: Path, address: str, port: int, build: Build, *, same_bits: bool) -> None:
        keys = load_join_keys(state_root)
        self._state_root = state_root
        self._secure = SecureContext((keys.public_key, keys.secret_key))
        self._secure.allowed.replace(token.public_key for token in keys.tokens)
        try:
            self._server = JoinServer(self._secure, address, port)
        except ShoalError:
            self._secure.close()
            raise
        where = f"[{address}]" if ":" in address else address
        self.address = f"{where}:{self._server.port}"
        self._membership = Membership(build, self.address, same_bits=same_bits)
        self._members: dict[NodeId, Machine] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._clock = AwakeClock(time.monotonic())
        self._fetches: dict[tuple[NodeId, str], Future[Path]] = {}
        self._paths: dict[str, Path] = {}
        self._digests: dict[str, str] = {}
        self._keys_changed = _changed_at(state_root)
        self._events: DoorEvents | None = None
        self._stopping = threading.Event()
        self._closing = threading.Lock()  # nobody wakes a socket that has been closed
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="shoal-door", daemon=True)

    def start(self, events: DoorEvents) -> None:
        self._events = events
        self._thread.start()

    def open(self, ray_address: str, ray_token: str) -> None:
        """Let machines in."""
        self._post(lambda: self._membership.open(ray_address, ray_token))

    def stop(self) -> None:
        """Tell the members that the head ends, and close. Once; also where `start` never came."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(STOP_DEADLINE_S)
        else:
            self._close()

    # ------------------------------------------------------------ what others ask, from any thread

    def member(self, node: NodeId) -> Machine | None:
        """A machine that has joined, as it was last heard of."""
        return self._members.get(node)

    def free_bytes(self, node: NodeId, reserved_bytes: int) -> int:
        """See membership.free_bytes."""
        return free_bytes(self._members.get(node), reserved_bytes, self._clock.awake_s)

    def fetch(self, node: NodeId, path: Path) -> Path:
        """Have a member hold a file of ours; returns its path there. Blocks while it is sent.

        Raises ClusterError where the member is lost or cannot have it.
        """
        name = path.name
        if name not in self._digests:
            with path.open("rb") as file:
                self._digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        offer = Offer(name, path.stat().st_size, self._digests[name])
        fetched: Future[Path] = Future()
        self._post(lambda: self._offer(node, offer, path, fetched))
        try:
            return fetched.result(FETCH_DEADLINE_S)
        except TimeoutError:
            raise ClusterError(f"{node} did not fetch {name} in {FETCH_DEADLINE_S:.0f} s.") from None

    def end_worker(self, node: NodeId, pid: int) -> None:
        """End a worker's process on a member. Never raises."""
        self._post(lambda: self._membership.end_worker(node, pid))

    def left(self, node: NodeId) -> None:
        """Nothing on this member is needed any more."""
        self._post(lambda: self._membership.left(node))

    # ------------------------------------------------------------ the door's thread

    def _post(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._server.wake()

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            for peer in self._membership.peers():
                self._server.send(peer, Closing())
            self._fail_fetches(None, "the head ends")
            self._close()

    def _close(self) -> None:
        with self._closing:
            self._is_closed = True
            self._server.close(linger_s=FAREWELL_S)
        # Closing the context drops what its sockets have not sent yet.
        if self._members:
            time.sleep(FAREWELL_S)
        self._secure.close()

    def _loop(self) -> None:
        next_keys_s = self._clock.awake_s + KEYS_AGAIN_S
        while not self._stopping.is_set():
            arrivals = self._server.receive(TICK_S)
            now_s = self._clock.read(time.monotonic())
            while self._calls:
                self._calls.popleft()()
            for arrival in arrivals:
                self._membership.receive(arrival.peer, arrival.message, now_s)
            self._membership.tick(now_s)
            self._members = {m.node: m for m in self._membership.members()}
            for action in self._membership.take_actions():
                self._act(action)
            if now_s > next_keys_s:
                next_keys_s = now_s + KEYS_AGAIN_S
                self._read_keys_again()

    def _act(self, action: Action) -> None:
        assert self._events is not None, "start came first"
        match action:
            case Reply(peer, message):
                self._server.send(peer, message)
            case SendChunk(peer, name, offset):
                self._send_chunk(peer, name, offset)
            case Probe():
                threading.Thread(target=self._probe, args=(action,), name="shoal-probe", daemon=True).start()
            case FileAnswer(node, name, path, reason):
                self._answered(node, name, path, reason)
            case NodeJoined(node):
                logger.warning("machine %s has joined from %s", node, self._members[node].address)
                self._events.joined(node)
            case NodeLeaves(node):
                self._events.leaves(node)
            case NodeGone(node, cause):
                logger.error("machine %s is lost: %s", node, cause)
                self._fail_fetches(node, f"machine {node} is lost")
                self._events.gone(node, cause)

    def _send_chunk(self, peer: bytes, name: str, offset: int) -> None:
        try:
            with self._paths[name].open("rb") as file:
                file.seek(offset)
                self._server.send(peer, Chunk(name, offset), file.read(CHUNK_BYTES))
        except OSError as error:  # the machine's own deadline ends its fetch
            logger.error("cannot read %s for a machine that joined: %s", self._paths[name], error)

    def _offer(self, node: NodeId, offer: Offer, path: Path, fetched: Future[Path]) -> None:
        self._paths[offer.name] = path
        if self._membership.offer(node, offer):
            before = self._fetches.pop((node, offer.name), None)
            if before is not None:
                before.set_exception(ClusterError(f"{offer.name} was asked for again."))
            self._fetches[node, offer.name] = fetched
        else:
            fetched.set_exception(ClusterError(f"Machine {node} has gone."))

    def _answered(self, node: NodeId, name: str, path: str | None, reason: str) -> None:
        fetched = self._fetches.pop((node, name), None)
        if fetched is None:
            return
        if path is not None:
            fetched.set_result(Path(path))
        else:
            fetched.set_exception(ClusterError(f"Machine {node} cannot hold {name}: {reason}"))

    def _fail_fetches(self, node: NodeId | None, why: str) -> None:
        for key in [key for key in self._fetches if node is None or key[0] == node]:
            self._fetches.pop(key).set_exception(ClusterError(f"{key[1]} was not sent: {why}."))

    def _probe(self, probe: Probe) -> None:
        why_not = _why_unreachable(probe)
        self._post(lambda: self._membership.probed(probe.peer, why_not))

    def _read_keys_again(self) -> None:
        changed = _changed_at(self._state_root)
        if changed == self._keys_changed:
            return
        self._keys_changed = changed
        try:
            keys = load_join_keys(self._state_root)
        except (ShoalError, OSError) as error:
            logger.error("the tokens stay as they were: %s", error)
            return
        self._secure.allowed.replace(token.public_key for token in keys.tokens)


def _changed_at(state_root: Path) -> int | None:
    try:
        return keys_path(state_root).stat().st_mtime_ns
    except OSError:
        return None


def _why_unreachable(probe: Probe) -> str | None:
    """Connect to the machine where it says that it is, and see that it is the same one: an address
    such as a container bridge's may exist here too."""
    expected = probe.nonce.encode()
    try:
        ipaddress.ip_address(probe.address)  # a name might mean another machine to others
        with socket.create_connection((probe.address, probe.port), PROBE_DEADLINE_S) as connection:
            connection.settimeout(PROBE_DEADLINE_S)
            heard = b""
            while len(heard) < len(expected) and (part := connection.recv(len(expected) - len(heard))):
                heard += part
    except TimeoutError:
        return f"no answer within {PROBE_DEADLINE_S:.1f} s"
    except (OSError, ValueError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if heard == expected else "another machine answers there"
