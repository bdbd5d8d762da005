"""A real `shoal serve` in a process of its own, with folders of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import psutil

from shoal.core.status import ClusterStatus
from tests.support.processes import processes_using, wait_until

UP_DEADLINE_S = 60.0
STOP_DEADLINE_S = 5.0


@dataclass
class ServeProcess:
    """home: where it keeps slices. state_root: where its Ray lives. log: what it printed."""

    process: subprocess.Popen[bytes]
    home: Path
    state_root: Path
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def url(self) -> str:
        return self.output.split("OpenAI API:")[1].split()[0].removesuffix("/v1")

    def wait_for(self, text: str) -> None:
        """Until `text` was printed; fails with the whole output when the process ends before."""
        wait_until(
            lambda: text in self.output or self.process.poll() is not None,
            deadline_s=UP_DEADLINE_S,
            what=f"{text!r} in the output",
        )
        assert text in self.output, f"ended with {self.process.returncode}:\n{self.output}"

    def wait_until_up(self) -> None:
        self.wait_for("End it:  Ctrl-C")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status; fails when that takes more than 5 s."""
        self.process.send_signal(number)
        return self.process.wait(timeout=STOP_DEADLINE_S)

    def leftovers(self) -> list[str]:
        """Processes that live though this one has ended, and files that are not whole."""
        partial = [str(path) for path in self.home.rglob("*.partial")]
        return processes_using(self.state_root) + partial

    def chat(self, **fields: object) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hello"}], "model": self.model(), **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30)

    def model(self) -> str:
        name: str = httpx.get(f"{self.url}/v1/models", timeout=10).json()["data"][0]["id"]
        return name

    def ready_status(self) -> int:
        return httpx.get(f"{self.url}/health/ready", timeout=10).status_code

    def status(self) -> ClusterStatus:
        found = httpx.get(f"{self.url}/admin/status", timeout=10).json()
        return msgspec.convert(found, ClusterStatus)

    def worker_pids(self) -> list[int]:
        """Processes of all workers, standbys too."""
        return [worker.pid for worker in self.status().workers]

    def stage_pids(self) -> list[int]:
        """Processes that carry a stage, in order; standbys are left out."""
        return [worker.pid for worker in self.status().workers if worker.role == "stage"]


@contextmanager
def serve_process(
    *arguments: str, home: Path | None = None, state_root: Path | None = None
) -> Iterator[ServeProcess]:
    """Run `shoal serve ARGUMENTS` on a port that the system chooses. Killed at the end, with all
    that it started, however the test went."""
    # Ray's sockets need a short path, shorter than pytest's.
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as name:
        folder = Path(name)
        log = folder / "log"
        environment = os.environ | {
            "SHOAL_HOME": str(home or folder / "home"),
            "TMPDIR": str(state_root or folder),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "shoal.cli", "serve", *arguments]
        if "--listen" not in arguments:
            command += ["--listen", "127.0.0.1:0"]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        with process:
            served = ServeProcess(process, home or folder / "home", state_root or folder, log)
            try:
                yield served
            finally:
                process.kill()
                process.wait()
                for line in processes_using(folder):
                    with suppress(psutil.NoSuchProcess):
                        psutil.Process(int(line.split()[0])).kill()
