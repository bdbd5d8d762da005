"""The things that are compared, each in processes of its own, started and ended here."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import httpx
import psutil

START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 20.0


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Started:
    """A process that answers at `url` once it is ready. start_s: how long that took."""

    def __init__(
        self, command: Sequence[str], port: int, ready_path: str, log: Path, env: dict[str, str]
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log: IO[bytes] = log.open("wb")
        began_s = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ, **env}
        )
        self._wait_until_ready(ready_path, log, command[0])
        self.start_s = time.monotonic() - began_s

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _wait_until_ready(self, path: str, log: Path, program: str) -> None:
        deadline_s = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}{path}").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.process.kill()
        raise SystemExit(f"{program} did not come up:\n{log.read_text()[-2000:]}")


class ShoalServe(Started):
    """`shoal serve` on local nodes of one thread each."""

    def __init__(self, model: str, home: Path, log: Path, arguments: Sequence[str]) -> None:
        port = free_port()
        shoal = str(Path(sys.executable).with_name("shoal"))
        command = [shoal, "serve", model, "--listen", f"127.0.0.1:{port}", *arguments]
        super().__init__(command, port, "/health/ready", log, {"SHOAL_HOME": str(home)})
        status = httpx.get(f"{self.url}/admin/status").json()
        self.model = status["model"]
        self.layers = [f"[{w['layer_start']}, {w['layer_end']})" for w in status["workers"]]
        self.worker_pids: list[int] = [worker["pid"] for worker in status["workers"]]

    @property
    def pids(self) -> list[int]:
        return [self.process.pid, *self.worker_pids]

    def worker_rss_bytes(self) -> list[int]:
        return [psutil.Process(pid).memory_info().rss for pid in self.worker_pids]


class LlamaRpc(Started):
    """llama.cpp's own way: one ggml-rpc-server of one thread for each node, and llama-server."""

    model = "any"

    def __init__(self, model: str, log: Path, num_nodes: int, chunk_tokens: int) -> None:
        rpc_server, llama_server = os.environ["GGML_RPC_SERVER"], os.environ["LLAMA_SERVER"]
        ports = [free_port() for _ in range(num_nodes)]
        self._nodes = [
            subprocess.Popen(
                [rpc_server, "-H", "127.0.0.1", "-p", str(port), "-t", "1"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for port in ports
        ]
        port = free_port()
        rpc = ",".join(f"127.0.0.1:{p}" for p in ports)
        chunk = str(chunk_tokens)
        command = [
            llama_server, "--model", model, "--rpc", rpc, "-ngl", "99", "-c", "20480", "-np", "8",
            "-b", chunk, "-ub", chunk, "-t", "1", "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        super().__init__(command, port, "/health", log, {})

    @property
    def pids(self) -> list[int]:
        return [self.process.pid, *(node.pid for node in self._nodes)]

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._stop_nodes()

    def _stop_nodes(self) -> None:
        for node in self._nodes:
            node.kill()
            node.wait()


class UndividedProcess:
    """benchmarks/undivided.py, asked one thing at a time."""

    def __init__(self, model: str, chunk_tokens: int, *, repack: bool) -> None:
        command = [sys.executable, str(Path(__file__).with_name("undivided.py")), model]
        command += ["--chunk-tokens", str(chunk_tokens)] + ([] if repack else ["--no-repack"])
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read()

    def ask(self, *words: object) -> float:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)
        return float(str(self._read()["result"]))

    def stop(self) -> None:
        # Ended by force: it may be in the middle of a computation, and holds nothing that is needed.
        self.process.kill()
        self.process.wait()

    def _read(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("The undivided model's process ended; run benchmarks/undivided.py to see why.")
        answer: dict[str, object] = json.loads(line)
        return answer
