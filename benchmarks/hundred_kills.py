"""A hundred kills in a row under four streams: is every text right, and does any memory grow?

    python -m benchmarks.hundred_kills model.gguf --kills 100 --every 3

Runs `shoal serve --invariant` on local nodes, asks the same questions again and again on all streams,
and kills the owner of a random stage every few seconds, whether or not redundancy is back. Exit status
1 where a text was wrong, a stream broke off or got stuck, sessions were left, or the memory of one of
Shoal's processes that lived through it grew by more than 5 % from its second quarter to its last
(medians). Ray's own daemons are shown beside it: their records of dead workers are Ray's to bound.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmarks.servers import ShoalServe
from benchmarks.sse import complete

MAY_GROW = 0.05
LONG_SILENCE_S = 5.0
MIN_SAMPLES = 12
"""Of a process that lived long enough to be judged."""

PROMPTS = [[3 + (7 * stream + 11 * at) % 250 for at in range(20 + 30 * stream)] for stream in range(4)]


class Streams:
    """Asks all prompts again and again until `stop`; counts right, wrong and broken answers."""

    def __init__(self, served: ShoalServe, max_tokens: int) -> None:
        self._served, self._max_tokens = served, max_tokens
        self._stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.stalls_s: list[float] = []
        self.long_silences: list[str] = []
        self._unbroken = [self._ask(prompt) for prompt in PROMPTS]
        self.stalls_s.clear()
        self._pool = ThreadPoolExecutor(len(PROMPTS))
        self._running: list[Future[None]] = [
            self._pool.submit(self._run, stream) for stream in range(len(PROMPTS))
        ]

    def stop(self) -> None:
        self._stopping.set()
        for running in self._running:
            running.result(300)
        self._pool.shutdown()

    def _run(self, stream: int) -> None:
        while not self._stopping.is_set():
            text = self._ask(PROMPTS[stream])
            is_right = text == self._unbroken[stream]
            self.counts["broken" if text is None else "right" if is_right else "wrong"] += 1

    def _ask(self, prompt: list[int]) -> str | None:
        timed = complete(self._served.url, self._served.model, prompt, self._max_tokens)
        stall_s = timed.stall_s(timed.began_s)
        self.stalls_s.append(stall_s)
        if stall_s > LONG_SILENCE_S:
            self.long_silences.append(
                f"{stall_s:.1f} s, in an answer that ended at {time.strftime('%H:%M:%S')}"
            )
        return None if timed.error else timed.text


class Memory:
    """Resident bytes of the head, of Ray's daemons and of the workers, by process, over time."""

    def __init__(self, served: ShoalServe) -> None:
        self._served = served
        self._bytes: dict[int, list[int]] = defaultdict(list)
        self._names: dict[int, str] = {}
        self._daemons: set[int] = set()

    def sample(self) -> None:
        head = psutil.Process(self._served.process.pid)
        workers = {worker["pid"] for worker in status_of(self._served)["workers"]}
        if not self._daemons:
            self._daemons = ray_daemons(workers)
        for pid in {head.pid, *workers, *self._daemons}:
            try:
                process = psutil.Process(pid)
                self._bytes[pid].append(process.memory_info().rss)
                self._names.setdefault(pid, "worker" if pid in workers else process.name())
            except psutil.NoSuchProcess:
                continue

    def grown(self) -> list[tuple[str, int, int, bool]]:
        """Processes that are still there and were seen often enough: name, bytes in their second
        quarter, when all that is loaded once is there, and in their last; whether they are Ray's."""
        found = []
        for pid, sizes in self._bytes.items():
            if len(sizes) >= MIN_SAMPLES and psutil.pid_exists(pid):
                quarter = len(sizes) // 4
                first, last = median(sizes[quarter : 2 * quarter]), median(sizes[-quarter:])
                found.append((f"{self._names[pid]} {pid}", int(first), int(last), pid in self._daemons))
        return found


def ray_daemons(workers: set[int]) -> set[int]:
    """Ray's own processes: the one that started the workers, and those that use the same folder."""
    raylet = next((p for pid in workers if (p := psutil.Process(pid).parent()) is not None), None)
    folders = [] if raylet is None else [w for w in raylet.cmdline() if w.startswith("--session_dir=")]
    if not folders:
        return set()
    folder = folders[0].partition("=")[2]
    return {
        p.pid for p in psutil.process_iter(["cmdline"]) if any(folder in w for w in p.info["cmdline"] or ())
    }


def status_of(served: ShoalServe) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{served.url}/admin/status", timeout=30).json()
    return found


def kill_one(served: ShoalServe, generator: random.Random) -> str:
    """Kill the owner of a random stage; what it was, or that nobody was left to kill."""
    owners = [w for w in status_of(served)["workers"] if w["role"] == "stage" and w["state"] != "lost"]
    if not owners:
        return "nobody: kills come faster than workers load"
    victim = generator.choice(owners)
    os.kill(victim["pid"], signal.SIGKILL)
    return f"stage {victim['stage']} on {victim['node']}"


def run(arguments: argparse.Namespace, served: ShoalServe) -> list[str]:
    """All kills; what went wrong."""
    generator = random.Random(arguments.seed)
    streams, memory = Streams(served, arguments.max_tokens), Memory(served)
    gateway = served.process.pid
    for number in range(arguments.kills):
        time.sleep(arguments.every)
        memory.sample()
        try:
            killed = kill_one(served, generator)
        except ProcessLookupError:
            continue  # it had just died of something else, which the head will say
        if number % 10 == 0:
            print(f"kill {number + 1}: {killed}; {dict(streams.counts)}", flush=True)
    streams.stop()
    memory.sample()
    problems = [f"{count} {what} answers" for what, count in streams.counts.items() if what != "right"]
    for name, first, last, is_rays in memory.grown():
        of = " of Ray's" if is_rays else ""
        print(f"{name}{of}: {first / 2**20:.1f} MiB, then {last / 2**20:.1f} MiB ({last / first - 1:+.1%})")
        if last > first * (1 + MAY_GROW) and not is_rays:
            problems.append(f"{name} grew by {last / first - 1:.1%}")
    status = status_of(served)
    if status["sessions_active"] or status["sessions_waiting"]:
        problems.append("sessions are left")
    if served.process.poll() is not None or served.process.pid != gateway:
        problems.append("the head is gone")
    rungs = Counter(loss["rung"] or loss["end"] for loss in status["losses"])
    print(f"{arguments.kills} kills, {dict(streams.counts)}, last losses {dict(rungs)}")
    print(f"longest silence of an answer: median {median(streams.stalls_s):.2f} s", end=", ")
    print(f"most {max(streams.stalls_s):.2f} s")
    for silence in streams.long_silences[:10]:
        print(f"silence of {silence}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="where the head's output is kept")
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "shoal")
    arguments = parser.parse_args()
    flags = ["--nodes", "3", "--spares", "1", "--threads", "1", "--invariant"]
    with tempfile.TemporaryDirectory() as folder:
        served = ShoalServe(arguments.model, arguments.home, arguments.log or Path(folder) / "log", flags)
        try:
            problems = run(arguments, served)
        finally:
            served.stop()
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
