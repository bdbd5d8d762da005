"""What a hot standby with a core of its own costs the pipeline that feeds it.

    python -m benchmarks.feeding model.gguf

Runs `shoal serve` twice, side by side: alone, and with one hot standby more. Head and stages of both are held
to core 0, with one thread each; the standby, Ray and this client to core 1, as if they were machines of
their own. Decodes one stream on one, then the other, many times in turns, and compares within each pair.
What feeding costs is what a token takes longer outside of computing (by /admin/trace). Head and stages share
core 0, so it is all that they do for the standby, in series: with machines of their own it is less. What
computing takes longer is told apart: both cores read weights through one memory, and machines do not.

--stages 1: the head feeds the standby, with token ids. --stages 2: a stage may do so, with rows.
Needs two idle cores; exit status 1 where the cost is above 3 %.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import psutil

from benchmarks.servers import ShoalServe
from benchmarks.sse import complete

RESTORE_DEADLINE_S = 120.0
PROMPT = list(range(300, 316))
PIPELINE_CORE, OTHER_CORE = 0, 1
MAY_COST = 0.03


@dataclass(frozen=True)
class Token:
    """Seconds, by the wall clock."""

    wall_s: float
    computing_s: float

    def __str__(self) -> str:
        return f"{1000 * self.wall_s:.2f} ms ({1000 * self.computing_s:.2f} computing)"


@dataclass(frozen=True)
class Pair:
    """The same stream, with and without a standby. Costs are shares of a token's time."""

    alone: Token
    fed: Token

    @property
    def feeding(self) -> float:
        return (self.fed.wall_s - self.alone.wall_s) / self.alone.wall_s - self.memory

    @property
    def memory(self) -> float:
        return (self.fed.computing_s - self.alone.computing_s) / self.alone.wall_s

    def __str__(self) -> str:
        return (
            f"alone {self.alone}, fed {self.fed}: {self.feeding:+.1%} feeding, {self.memory:+.1%} computing"
        )


class Pipeline:
    """One `shoal serve`. is_fed: with a hot standby."""

    def __init__(self, arguments: argparse.Namespace, log: Path, *, is_fed: bool) -> None:
        flags = ["--nodes", str(arguments.stages), "--threads", "1", "--ctx", "2048"]
        flags += ["--survive", "1", "--spares", "1"] if is_fed else ["--survive", "0"]
        self.served = ShoalServe(arguments.model, arguments.home, log, flags)
        self._is_fed = is_fed
        self._max_tokens: int = arguments.max_tokens

    def wait_until_fed(self) -> None:
        """Until the standby is there and nothing is being loaded any more."""
        give_up_s = time.monotonic() + RESTORE_DEADLINE_S
        while self._is_fed and not self._is_whole():
            if time.monotonic() > give_up_s:
                raise SystemExit("the hot standby did not come up")
            time.sleep(0.2)

    def _is_whole(self) -> bool:
        workers = self._workers()
        held = [sum(w["stage"] == stage for w in workers) for stage in {w["stage"] for w in workers}]
        return min(held) == 2 and any(worker["role"] == "hot standby" for worker in workers)

    def pin(self) -> None:
        """Head and stages to their core, all else to the other."""
        head = psutil.Process(self.served.process.pid)
        stages = {worker["pid"] for worker in self._workers() if worker["role"] == "stage"}
        hold_to(PIPELINE_CORE, {head.pid, *stages})
        hold_to(OTHER_CORE, {child.pid for child in head.children(recursive=True)} - stages)

    def later_token(self) -> Token:
        """The mean token of one stream, behind the first."""
        timed = complete(self.served.url, self.served.model, PROMPT, self._max_tokens)
        if timed.error:
            raise SystemExit(timed.error)
        [times] = httpx.get(f"{self.served.url}/admin/trace/{timed.request_id}").json()["answers"]
        computing_s = sum(
            s for name, s in zip(times["columns"], times["decode"], strict=True) if name.endswith("compute")
        )
        num_tokens = times["generated_tokens"] - 1
        return Token(sum(times["decode"]) / num_tokens, computing_s / num_tokens)

    def _workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.served.url}/admin/status").json()["workers"]
        return found


def hold_to(core: int, pids: Iterable[int]) -> None:
    """All threads of these processes; those that they start later do as the one that starts them."""
    for pid in pids:
        with suppress(FileNotFoundError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), {core})


def measure(num_rounds: int, alone: Pipeline, fed: Pipeline) -> list[Pair]:
    pairs = []
    for number in range(num_rounds):
        for pipeline in (alone, fed):
            pipeline.pin()
        order = (alone, fed) if number % 2 else (fed, alone)
        tokens = {pipeline: pipeline.later_token() for pipeline in order}
        pairs.append(Pair(tokens[alone], tokens[fed]))
        print(f"round {number + 1}: {pairs[-1]}", flush=True)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "shoal")
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("Two cores are needed: one for the pipeline, one for the standby.")
    os.sched_setaffinity(0, {OTHER_CORE})
    with tempfile.TemporaryDirectory() as folder:
        pipelines: list[Pipeline] = []
        try:
            for is_fed in (False, True):
                os.sched_setaffinity(0, {PIPELINE_CORE, OTHER_CORE})  # what is started may load on both
                pipelines.append(Pipeline(arguments, Path(folder) / str(is_fed), is_fed=is_fed))
            os.sched_setaffinity(0, {OTHER_CORE})
            alone, fed = pipelines
            fed.wait_until_fed()
            for pipeline in pipelines:
                pipeline.pin()
                pipeline.later_token()
            pairs = measure(arguments.rounds, alone, fed)
        finally:
            for pipeline in pipelines:
                pipeline.served.stop()
    feeding = [pair.feeding for pair in pairs]
    print(
        f"a token takes {_spread(feeding)} longer for feeding a hot standby, and "
        f"{_spread([pair.memory for pair in pairs])} for computing beside it; load {os.getloadavg()[0]:.1f}"
    )
    raise SystemExit(median(feeding) > MAY_COST)


def _spread(shares: list[float]) -> str:
    low, _, high = quantiles(shares, n=4)
    return f"{median(shares):.1%} (half of the pairs: {low:.1%} to {high:.1%})"


if __name__ == "__main__":
    main()
