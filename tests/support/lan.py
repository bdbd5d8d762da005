"""A small network on this machine: namespaces on a bridge, each link held to 1 Gbit/s.

Needs root and `ip` and `tc`; `why_no_lan` says what is missing.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from tests.support.processes import wait_until
from tests.support.slow_link import SlowLink

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
START_DEADLINE_S = 60.0
NOBODY = "02:00:00:00:00:01"  # an Ethernet address that no host has


def why_no_lan() -> str | None:
    """Why namespaces cannot be used here; None where they can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} for network namespaces"
    name = f"shoal-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return None


class Command:
    """`shoal ...` that runs on a host, and what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        """With line breaks as spaces: where they fall depends on the terminal."""
        return " ".join(self._log.read_text(errors="replace").split())

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Until `text` was printed; fails with the whole output when the process ends before."""
        wait_until(
            lambda: self.output.count(text) >= times or self.process.poll() is not None,
            deadline_s=START_DEADLINE_S,
            what=f"{text!r} in: {self.output}",
        )
        assert self.output.count(text) >= times, f"ended with {self.process.returncode}: {self.output}"


class Host:
    """One machine: its own network, home and state. address, address6: on the network."""

    def __init__(self, namespace: str, link: str, number: int, folder: Path) -> None:
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number}"
        self.home = folder / "home"
        self.folder = folder
        self._namespace = namespace
        self._link = link
        self._num_commands = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> Command:
        """Run `shoal ARGUMENTS` here."""
        self._num_commands += 1
        log = self.folder / f"log-{self._num_commands}"
        environment = os.environ | {
            "SHOAL_HOME": str(self.home),
            "TMPDIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        command = ["ip", "netns", "exec", self._namespace, sys.executable, "-m", "shoal.cli", *arguments]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )
        self._started.append(process)
        return Command(process, log)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run `shoal ARGUMENTS` here to its end; its status and what it printed."""
        command = self.start(*arguments)
        return command.process.wait(timeout=START_DEADLINE_S), command.output

    def inside(self, call: Callable[[], T]) -> T:
        """Make a call in a thread that sees this machine's network."""
        results: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with open(f"/run/netns/{self._namespace}") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                results.append(call())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return results[0]

    def cut(self) -> None:
        """Pull the cable, at the switch: nobody is told."""
        _run("ip", "link", "set", self._link, "nomaster")

    def mend(self) -> None:
        _run("ip", "link", "set", self._link, "master", self._link.split("-")[0])

    @contextmanager
    def slowed(self, delay_s: float) -> Iterator[None]:
        """Every packet from and to here takes so much longer meanwhile, at the switch."""
        bridge, near, far = self._link.split("-")[0], f"{self._link}-n", f"{self._link}-f"
        aside = f"{self._link}-b"  # a switch of its own for this host and the near end
        with SlowLink((near, far), delay_s):
            try:
                _run("ip", "link", "add", aside, "type", "bridge")
                for device in (aside, near, far):
                    _run("ip", "link", "set", device, "up")
                _run("ip", "link", "set", near, "master", aside)
                _run("ip", "link", "set", far, "master", bridge)
                _run("ip", "link", "set", self._link, "master", aside)
                yield
            finally:
                self.mend()
                _run("ip", "link", "del", aside)

    def cut_to(self, other: Host) -> None:
        """Lose every packet from here to another host, at the sender and without a word; the other way
        stays, but for acknowledgements."""
        for address in (other.address, other.address6):
            self._neighbour("replace", address, "lladdr", NOBODY, "nud", "permanent")

    def mend_to(self, other: Host) -> None:
        """Idempotent."""
        for address in (other.address, other.address6):
            # Not `del`, which fails where it was not cut: this one has it looked up again.
            self._neighbour("replace", address, "lladdr", NOBODY, "nud", "stale")
            self._neighbour("del", address)

    def _neighbour(self, verb: str, address: str, *more: str) -> None:
        _run("ip", "-n", self._namespace, "neigh", verb, address, *more, "dev", "lan")

    def freeze(self) -> list[int]:
        """Stop all processes here, with their connections open; returns them."""
        frozen = self.pids()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        return frozen

    def thaw(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        """Processes that live here."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self._namespace], capture_output=True, text=True, check=True
        )
        return [pid for pid in map(int, listed.stdout.split()) if _is_live(pid)]

    def end_all(self) -> None:
        for pid in self.pids():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        for process in self._started:
            process.wait()


@contextmanager
def lan(num_hosts: int) -> Iterator[list[Host]]:
    """Hosts that reach each other and nobody else. All that runs on them is killed at the end."""
    bridge = f"sh{secrets.token_hex(3)}"
    hosts: list[Host] = []
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        try:
            # Without an address of its own: this machine takes no part.
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "link", "set", bridge, "up")
            for number in range(1, num_hosts + 1):
                hosts.append(_new_host(bridge, number, Path(name) / str(number)))
            yield hosts
        finally:
            for host in hosts:
                host.end_all()
                _run("ip", "netns", "del", host._namespace)
            _run("ip", "link", "del", bridge)


def _new_host(bridge: str, number: int, folder: Path) -> Host:
    namespace, link = f"{bridge}-{number}", f"{bridge}-{number}"
    folder.mkdir()
    _run("ip", "netns", "add", namespace)
    host = Host(namespace, link, number, folder)
    inside = ("ip", "-n", namespace)
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "lan", "netns", namespace)
    _run("ip", "link", "set", link, "master", bridge, "up")
    _run(*inside, "addr", "add", f"{host.address}/24", "dev", "lan")
    _run(*inside, "addr", "add", f"{host.address6}/64", "dev", "lan", "nodad")
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "link", "set", "lan", "up")
    shape = ("root", "tbf", "rate", "1gbit", "burst", "256k", "latency", "50ms")
    _run("tc", "qdisc", "add", "dev", link, *shape)
    _run("tc", "-n", namespace, "qdisc", "add", "dev", "lan", *shape)
    return host


def _is_live(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
