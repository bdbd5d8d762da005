"""Mixed load on a cluster for a long time: does anything grow, slow down or get stuck?

    python -m benchmarks.soak gemma3-270m --minutes 60 --out soak

Clients ask for short and long answers, leave in the middle, send what must be refused, and now and then
all come at once; with --kill-every a worker is killed meanwhile. Every process's memory is sampled.
Exit status 1, with the reasons, where

- an answer failed, came incomplete, or nothing at all came for STUCK_S;
- sessions, cells or steps are left when everybody has gone;
- a process's memory still grows in the second half;
- short requests take far longer at the end than at the beginning.

Writes OUT.csv (memory by process over time) and OUT.json (counts and latencies).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress

from benchmarks.servers import ShoalServe
from shoal.commands.api_load import random_prompt

STUCK_S = 120.0
SAMPLE_S = 2.0
DRAIN_S = 30.0
BURST_EVERY_S = 45.0
RETRY_S = 2.0
BURST_REQUESTS = 110  # more than slots and queue hold: some must be refused with 429
MAY_GROW_BYTES = 24 * 2**20
MAY_GROW_SHARE = 0.03
MAY_SLOW_DOWN = 2.0
ENOUGH_LATENCIES = 50  # in each half, or the medians say nothing
KINDS = {"short": 10, "long": 3, "leaves": 4, "refused": 3}


@dataclass(slots=True)
class Log:
    """What happened. latencies_s: of short requests, with the time they began at."""

    began_s: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    latencies_s: list[tuple[float, float]] = field(default_factory=list)
    memory: list[tuple[float, str, int, int]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def problem(self, text: str) -> None:
        if len(self.problems) < 30:
            self.problems.append(f"{self.now_s():.0f} s: {text}")


class Soak:
    """One run against one server."""

    def __init__(self, serve: ShoalServe, options: argparse.Namespace) -> None:
        self.log = Log()
        self._serve = serve
        self._options = options
        self._generator = random.Random(options.seed)
        self._ends_s = time.monotonic() + 60 * options.minutes

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=BURST_REQUESTS + 50)
        async with httpx.AsyncClient(base_url=self._serve.url, timeout=STUCK_S, limits=limits) as http:
            side = [asyncio.create_task(work) for work in (self._sample(), self._burst(http), self._show())]
            if self._options.kill_every:
                side.append(asyncio.create_task(self._kill(http)))
            await asyncio.gather(*(self._client(http) for _ in range(self._options.clients)))
            for task in side:
                task.cancel()
            await asyncio.gather(*side, return_exceptions=True)
            await self._drained(http)

    # ------------------------------------------------------------ clients

    async def _client(self, http: httpx.AsyncClient) -> None:
        while time.monotonic() < self._ends_s:
            (kind,) = self._generator.choices(list(KINDS), weights=list(KINDS.values()))
            began_s = self.log.now_s()
            outcome = await self._ask_safely(http, kind)
            if outcome == "429":
                await asyncio.sleep(RETRY_S)
            if (kind, outcome) == ("short", "complete"):
                self.log.latencies_s.append((began_s, self.log.now_s() - began_s))

    async def _ask_safely(self, http: httpx.AsyncClient, kind: str) -> str:
        try:
            outcome = await self._ask(http, kind)
        except httpx.TimeoutException:
            outcome = "stuck"
            self.log.problem(f"a {kind} request heard nothing for {STUCK_S:.0f} s")
        except httpx.HTTPError as error:
            outcome = "failed"
            self.log.problem(f"a {kind} request: {type(error).__name__} {error}")
        self.log.counts[f"{kind}: {outcome}"] += 1
        return outcome

    async def _ask(self, http: httpx.AsyncClient, kind: str) -> str:
        draw = self._generator.randint
        match kind:
            case "short":
                return await self._stream(http, kind, draw(4, 40), draw(4, 24), leave_after=None)
            case "long":
                return await self._stream(http, kind, draw(300, 1200), draw(40, 120), leave_after=None)
            case "leaves":
                return await self._stream(http, kind, draw(4, 900), 200, leave_after=draw(0, 12))
            case "burst":
                return await self._stream(http, kind, draw(4, 12), 1, leave_after=None)
        return await self._be_refused(http)

    async def _stream(
        self, http: httpx.AsyncClient, kind: str, prompt: int, max_tokens: int, *, leave_after: int | None
    ) -> str:
        body: dict[str, object] = {
            "model": self._serve.model,
            "prompt": random_prompt(prompt, self._generator),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        num_pieces, is_done = 0, False
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 429:
                return "429"  # a burst has filled the queue
            if response.status_code != 200:
                self.log.problem(f"a {kind} request got {response.status_code}: {await response.aread()!r}")
                return str(response.status_code)
            async for line in response.aiter_lines():
                num_pieces += '"text":' in line
                is_done = is_done or line == "data: [DONE]"
                if '"error"' in line:
                    self.log.problem(f"a {kind} answer was broken off: {line[:200]}")
                    return "broken off"
                if leave_after is not None and num_pieces >= leave_after:
                    return "left"
        if not is_done:
            self.log.problem(f"a {kind} answer ended without [DONE]")
        return "complete" if is_done else "cut"

    async def _be_refused(self, http: httpx.AsyncClient) -> str:
        wrong: dict[str, object] = self._generator.choice(
            [{"max_tokens": 10**6}, {"temperature": -1}, {"prompt": []}, {"model": "nobody"}]
        )
        body = {"model": self._serve.model, "prompt": [400, 401], "max_tokens": 4, **wrong}
        response = await http.post("/v1/completions", json=body)
        if response.status_code not in (400, 404):
            self.log.problem(f"{wrong} got {response.status_code}")
        return str(response.status_code)

    async def _burst(self, http: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(BURST_EVERY_S)
            await asyncio.gather(*(self._ask_safely(http, "burst") for _ in range(BURST_REQUESTS)))

    async def _kill(self, http: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(self._options.kill_every)
            workers = (await http.get("/admin/status")).json()["workers"]
            victim = self._generator.choice(workers)["pid"]
            self.log.kills.append(self.log.now_s())
            os.kill(victim, signal.SIGKILL)

    # ------------------------------------------------------------ watching

    async def _sample(self) -> None:
        while True:
            for name, process in _processes(self._serve):
                try:
                    rss_bytes, anonymous_bytes = _memory(process)
                except (psutil.Error, OSError):
                    continue
                name = f"{name} {process.pid}"
                self.log.memory.append((self.log.now_s(), name, rss_bytes, anonymous_bytes))
            await asyncio.sleep(SAMPLE_S)

    async def _show(self) -> None:
        """A bar over the run's time, with what was answered so far."""
        with Progress(*Progress.get_default_columns(), console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=60 * self._options.minutes)
            while True:
                num_problems = len(self.log.problems)
                done = f"{self.log.counts.total()} requests, {num_problems} problems"
                progress.update(task, completed=self.log.now_s(), description=done)
                await asyncio.sleep(SAMPLE_S)

    async def _drained(self, http: httpx.AsyncClient) -> None:
        """When all have gone nothing is held."""
        deadline_s = time.monotonic() + DRAIN_S
        held: dict[str, int] = {}
        while time.monotonic() < deadline_s:
            status = (await http.get("/admin/status")).json()
            names = ("sessions_active", "sessions_waiting", "cells_reserved", "steps_in_flight")
            held = {name: status[name] for name in names if status[name]}
            if not held and status["ready"]:
                return
            await asyncio.sleep(0.5)
        self.log.problem(f"after everybody had gone there were still {held or 'missing layers'}")

    # ------------------------------------------------------------ judging

    def judge(self) -> None:
        """Add what grew or slowed down to the problems."""
        half_s = self.log.now_s() / 2
        curves: dict[str, list[tuple[float, int]]] = {}
        for at_s, name, _, anonymous_bytes in self.log.memory:
            if at_s > half_s:
                curves.setdefault(name, []).append((at_s, anonymous_bytes))
        for name, curve in curves.items():
            if len(curve) >= 6:
                self._judge_curve(name, [num_bytes for _, num_bytes in curve])
        first = [latency for at_s, latency in self.log.latencies_s if at_s <= half_s]
        second = [latency for at_s, latency in self.log.latencies_s if at_s > half_s]
        enough = min(len(first), len(second)) >= ENOUGH_LATENCIES
        if enough and statistics.median(second) > MAY_SLOW_DOWN * statistics.median(first):
            self.log.problem(
                f"short requests took {statistics.median(first):.2f} s in the first half, "
                f"{statistics.median(second):.2f} s in the second"
            )

    def _judge_curve(self, name: str, curve: list[int]) -> None:
        third = len(curve) // 3
        before, after = statistics.median(curve[:third]), statistics.median(curve[-third:])
        if after - before > max(MAY_GROW_BYTES, MAY_GROW_SHARE * before):
            self.log.problem(
                f"{name} grew from {before / 2**20:.0f} to {after / 2**20:.0f} MiB in the second half"
            )


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Resident bytes, and those of them that are no mapped file. The first stage's grow with each token
    that is new to it: its embedding table is mapped, and the system keeps what was read as it can."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return process.memory_info().rss, 1024 * int(fields["RssAnon"].split()[0])


def _processes(serve: ShoalServe) -> list[tuple[str, psutil.Process]]:
    """The head, the workers as they are now, and the Ray daemon that started them."""
    found = [("head", psutil.Process(serve.process.pid))]
    raylets: dict[int, psutil.Process] = {}
    status = httpx.get(f"{serve.url}/admin/status").json()
    for worker in status["workers"]:
        try:
            process = psutil.Process(worker["pid"])
            raylet = process.parent()
        except psutil.Error:
            continue  # it has just been killed
        found.append((f"worker {worker['layer_start']}-{worker['layer_end']}", process))
        if raylet is not None and raylet.pid > 1:
            raylets[raylet.pid] = raylet
    return found + [("raylet", raylet) for raylet in raylets.values()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("soak"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--nodes", str(options.nodes), "--threads", "1"]
        serve = ShoalServe(options.model, Path(folder) / "home", Path(folder) / "serve.log", arguments)
        try:
            soak = Soak(serve, options)
            asyncio.run(soak.run())
        finally:
            serve.stop()
    soak.judge()
    _write(soak.log, options)
    raise SystemExit(1 if soak.log.problems else 0)


def _write(log: Log, options: argparse.Namespace) -> None:
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["at_s", "process", "rss_bytes", "anonymous_bytes"])
        writer.writerows((f"{at_s:.1f}", *rest) for at_s, *rest in log.memory)
    latencies = [latency for _, latency in log.latencies_s]
    summary = {
        "minutes": options.minutes,
        "requests": dict(sorted(log.counts.items())),
        "kills": len(log.kills),
        "short_request_median_s": statistics.median(latencies) if latencies else None,
        "problems": log.problems,
    }
    options.out.with_suffix(".json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
