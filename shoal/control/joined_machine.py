"""A machine that joins: from the head's address to a Ray node that runs, and its end.

Owns this machine's Ray node and its link to the head. The head decides what runs here. Used by
`shoal join`, from one thread.
"""

from __future__ import annotations

import ipaddress
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.control.build import own_build
from shoal.control.daemon_processes import end_member
from shoal.control.join_link import Happening, HeadSilent, JoinLink
from shoal.control.node_memory import usable_memory_bytes
from shoal.control.ray_daemon import RayDaemon, prepare_ray_daemon
from shoal.core.errors import ClusterError, ConfigError, ShoalError
from shoal.core.join_token import JoinToken
from shoal.model.paths import slices_folder
from shoal.model.store import SliceStore
from shoal.wire.join import LinkNews
from shoal.wire.join_messages import (
    PROTOCOL_MINOR,
    Closing,
    Hello,
    Joined,
    Leave,
    Left,
    Ready,
    Refused,
    Welcome,
)
from shoal.wire.messages import PROTOCOL_VERSION

CONNECT_DEADLINE_S = 3.0
HELLO_DEADLINE_S = 5.0
JOINED_DEADLINE_S = 10.0
NONCE_BYTES = 16
# Worth another try a little later.
TRANSIENT = ("starting", "unknown")


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """One `shoal join`. host, port: the head's. address: what the head is to reach this machine at; None
    is the local end of the connection to the head. memory_bytes: the most that workers may take."""

    host: str
    port: int
    token: JoinToken
    name: str
    address: str | None
    threads: int
    memory_bytes: int
    home: Path
    state_root: Path


class TryAgain(ClusterError):
    """The head is not there, or not ready: the same may work later. is_starting: it is there."""

    code = "try_again"

    def __init__(self, message: str, *, next_step: str | None = None, is_starting: bool = False) -> None:
        super().__init__(message, next_step=next_step)
        self.is_starting = is_starting


class JoinedMachine:
    """`join`, then `wait`, perhaps `leave`, then `end`; `end` also after a `join` that was interrupted
    anywhere. May be used again after `end`."""

    def __init__(
        self, config: JoinConfig, fetched: Callable[[str, int, int], None] = lambda name, done, total: None
    ) -> None:
        self._config = config
        self._fetched = fetched
        self._store = SliceStore(slices_folder(config.home))
        self._daemon: RayDaemon | None = None
        self._link: JoinLink | None = None

    def join(self) -> str:
        """Come in; returns the name under which the head lists this machine. Takes seconds.

        Raises TryAgain where the head does not answer or is still starting, ConfigError for what the
        operator can change, ClusterError where Ray fails.
        """
        config = self._config
        head_address, local_address = _reach(config.host, config.port)
        address = config.address or local_address
        self._link = JoinLink(
            config.token,
            head_address,
            config.port,
            self._store,
            self._free_bytes,
            self._end_worker,
            self._fetched,
        )
        with _Probed(address) as probed:
            self._link.send(self._hello(address, probed))
            welcome = self._await_welcome(head_address)
        resource = f"shoal-{config.name}-{secrets.token_hex(4)}"
        self._daemon = prepare_ray_daemon(config.state_root)
        self._daemon.join(
            head=welcome.ray_address,
            token=welcome.ray_token,
            address=address,
            resource=resource,
            worker_threads=config.threads,
        )
        self._link.send(Ready(resource, config.threads, self._free_bytes(), config.memory_bytes))
        happening = self._next(JOINED_DEADLINE_S)
        while happening is LinkNews.BROKEN:
            happening = self._next(JOINED_DEADLINE_S)
        if isinstance(happening, Joined):
            return happening.node
        raise _error_of(happening, f"{config.host} port {config.port}")

    def wait(self, timeout_s: float) -> Happening | None:
        """What the head decides about this machine; None when the time has passed. A connection that
        broke is no end: it is made again, or the head is silent."""
        happening = self._next(timeout_s)
        return None if happening is LinkNews.BROKEN else happening

    def ask_to_leave(self) -> None:
        """Have the head move what this machine carries; `wait` then returns Left."""
        assert self._link is not None, "join comes first"
        self._link.send(Leave())

    def end(self) -> None:
        """End all that runs here of the cluster. Idempotent. Raises ClusterError when a process survives."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self.end_processes()
        self._daemon = None

    def end_processes(self) -> None:
        """Kill every process that was started, at once. Idempotent."""
        if self._daemon is not None:
            self._daemon.end()

    def _hello(self, address: str, probed: _Probed) -> Hello:
        build = own_build()
        return Hello(
            PROTOCOL_VERSION,
            PROTOCOL_MINOR,
            build.shoal,
            build.ray,
            build.python,
            build.llama,
            self._config.name,
            address,
            probed.port,
            probed.nonce,
            build.cpu_features,
        )

    def _await_welcome(self, head_address: str) -> Welcome:
        where = f"{head_address} port {self._config.port}"
        give_up_s = time.monotonic() + HELLO_DEADLINE_S
        num_broken = 0
        while (left_s := give_up_s - time.monotonic()) > 0:
            happening = self._next(left_s)
            if isinstance(happening, Welcome):
                return happening
            if happening is not None and happening is not LinkNews.BROKEN:
                raise _error_of(happening, where)
            num_broken += happening is LinkNews.BROKEN
            if num_broken >= 2:
                break
        if num_broken:
            raise ConfigError(
                f"What listens on {where} is not the head that this token is of.",
                next_step="Check the address that `shoal serve` printed there, and make a new token on that "
                "machine with `shoal token create`, as the same user.",
            )
        raise TryAgain(f"The head at {where} does not answer.")

    def _next(self, timeout_s: float) -> Happening | None:
        assert self._link is not None, "join comes first"
        try:
            return self._link.happenings.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _free_bytes(self) -> int:
        return min(usable_memory_bytes(), self._config.memory_bytes)

    def _end_worker(self, pid: int) -> None:
        daemon = self._daemon
        if daemon is not None:
            end_member(daemon.directory, pid)


class _Probed:
    """Answers whoever connects with a nonce: it tells the head that it reaches this machine."""

    def __init__(self, address: str) -> None:
        """Raises ConfigError where `address` is not this machine's."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._socket = socket.create_server((address, 0), family=family)
        except OSError as error:
            raise ConfigError(
                f"This machine has no address {address}: {_cause(error)}.",
                next_step=f"Its addresses: {', '.join(own_addresses())}.",
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.nonce = secrets.token_hex(NONCE_BYTES)
        self._thread = threading.Thread(target=self._serve, name="shoal-probed", daemon=True)

    def __enter__(self) -> _Probed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake an `accept` that waits.
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
                connection.sendall(self.nonce.encode())


def own_addresses() -> list[str]:
    """Addresses of this machine that others might reach."""
    found = []
    for interface in psutil.net_if_addrs().values():
        for entry in interface:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(entry.address.partition("%")[0])
                if not (address.is_loopback or address.is_link_local):
                    found.append(str(address))
    return found or ["none but loopback"]


def _reach(host: str, port: int) -> tuple[str, str]:
    """The head's address and ours, as of a connection between the two. Raises TryAgain, ConfigError."""
    try:
        with socket.create_connection((host, port), CONNECT_DEADLINE_S) as connection:
            head, here = connection.getpeername()[0], connection.getsockname()[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"The name {host!r} is not known here: {error.strerror}.",
            next_step="Use the address that `shoal serve` printed.",
        ) from error
    except OSError as error:
        cause = "no answer" if isinstance(error, TimeoutError) else _cause(error)
        raise TryAgain(
            f"The head at {host} port {port} cannot be reached from this machine "
            f"({', '.join(own_addresses())}): {cause}.",
            next_step="Is `shoal serve --join-listen` running there, and does no firewall stand between?",
        ) from error
    if "%" in here or ipaddress.ip_address(here).is_link_local:
        raise ConfigError(
            f"{here} is good on one link only, and workers could not use it.",
            next_step="Have the head listen on an address of your network.",
        )
    return head, here


def _cause(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno is not None else str(error)


def _error_of(happening: Happening | None, head: str) -> ShoalError:
    """What a refusal, or silence, means for the person at the keyboard."""
    match happening:
        case Refused() if happening.code in TRANSIENT:
            is_starting = happening.code == "starting"
            return TryAgain(happening.message, next_step=happening.next_step, is_starting=is_starting)
        case Refused():
            return ConfigError(happening.message, next_step=happening.next_step)
        case LinkNews.TOKEN_REFUSED:
            return ConfigError(
                f"The head at {head} refuses this token: it was revoked, or is another head's.",
                next_step="Run `shoal token create` on the head and use what it prints.",
            )
        case Closing() | Left():
            return TryAgain(f"The head at {head} has ended.")
        case HeadSilent() | LinkNews() | None | Welcome() | Joined():
            return TryAgain(f"The head at {head} does not answer any more.")


def is_final(happening: Happening) -> ShoalError | None:
    """The error with which a machine ends that was in; None where it may come in again."""
    if isinstance(happening, Refused) and happening.code not in TRANSIENT:
        return ConfigError(happening.message, next_step=happening.next_step)
    return None
