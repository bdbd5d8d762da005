"""What a hot standby with a core of its own costs the pipeline that feeds it.

    python -m benchmarks.feeding model.gguf

Runs `shoal serve` twice, side by side: alone, and with one hot standby more. Head and stages of both are held
to core 0, with one thread each; the standby, Ray and this client to core 1, as if they were machines of
their own. Decodes one stream on one, then the other, many times in turns, and compares the throughput within
each pair: what feeding costs is the part of core 0 that it takes. Head and stages share that core, so it is
all that they do for the standby, in series: with machines of their own it is less.

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

    def tok_per_s(self) -> tuple[float, float]:
        """Of one stream, from its first token to its last; and seconds of core 0 a token."""
        pids = [self.served.process.pid] + [w["pid"] for w in self._workers() if w["role"] == "stage"]
        before_s = cpu_s(pids)
        timed = complete(self.served.url, self.served.model, PROMPT, self._max_tokens)
        used_s = cpu_s(pids) - before_s
        if timed.error:
            raise SystemExit(timed.error)
        took_s = timed.times_s[-1] - timed.times_s[0]
        return (len(timed.times_s) - 1) / took_s, used_s / self._max_tokens

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


def cpu_s(pids: Iterable[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def measure(arguments: argparse.Namespace, alone: Pipeline, fed: Pipeline) -> list[tuple[float, float]]:
    """Pairs of cost, of throughput and of core 0's time: the share that is lost."""
    pairs = []
    for number in range(arguments.rounds):
        for pipeline in (alone, fed):
            pipeline.pin()
        order = (alone, fed) if number % 2 else (fed, alone)
        figures = {pipeline: pipeline.tok_per_s() for pipeline in order}
        (alone_rate, alone_s), (fed_rate, fed_s) = figures[alone], figures[fed]
        pairs.append((1 - fed_rate / alone_rate, fed_s / alone_s - 1))
        print(
            f"round {number + 1}: {alone_rate:.2f} tok/s alone, {fed_rate:.2f} fed ({-pairs[-1][0]:+.1%}); "
            f"core 0: {1000 * alone_s:.2f} and {1000 * fed_s:.2f} ms a token",
            flush=True,
        )
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
                pipeline.tok_per_s()
            pairs = measure(arguments, alone, fed)
        finally:
            for pipeline in pipelines:
                pipeline.served.stop()
    rates, times = ([pair[at] for pair in pairs] for at in (0, 1))
    low, _, high = quantiles(rates, n=4)
    print(
        f"a hot standby costs {median(rates):.1%} of the throughput (half of the pairs: {low:.1%} to "
        f"{high:.1%}), {median(times):.1%} of core 0's time; load {os.getloadavg()[0]:.1f}"
    )
    raise SystemExit(median(rates) > MAY_COST)


if __name__ == "__main__":
    main()
