"""What feeding hot standbys costs the pipeline: its processor time a token, with and without them.

    python -m benchmarks.feeding model.gguf

Runs `shoal serve` on two local nodes twice, once with a hot standby for each stage on nodes of their own,
and decodes one stream. On machines of their own, standbys take no core and no cache from the pipeline, so
what they cost it is what head and stages do for them: the processor time of all their threads but the
one of each stage that computes the model, as a share of all. (That one is slowed here by standbys that
compute beside it, as they would not elsewhere.) Runs alternate, and medians are compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmarks.servers import ShoalServe
from benchmarks.sse import complete

RESTORE_DEADLINE_S = 120.0
PROMPT = list(range(300, 316))
FLAGS = {"alone": ("--survive", "0"), "fed": ("--survive", "1", "--spares", "2")}


class Pipeline:
    """One `shoal serve` whose stages' processor time is read."""

    def __init__(self, name: str, arguments: argparse.Namespace, folder: Path) -> None:
        flags = ["--nodes", "2", "--threads", "1", *FLAGS[name]]
        self.served = ShoalServe(arguments.model, arguments.home, folder / name, flags)
        self._num_hot = 2 if name == "fed" else 0
        self._max_tokens: int = arguments.max_tokens

    def wait_until_fed(self) -> None:
        give_up_s = time.monotonic() + RESTORE_DEADLINE_S
        while sum(worker["role"] == "hot standby" for worker in self._workers()) < self._num_hot:
            if time.monotonic() > give_up_s:
                raise SystemExit("the hot standbys did not come up")
            time.sleep(0.2)

    def cpu_s_per_token(self) -> tuple[float, float]:
        """Of head and stages, without the threads that compute the model, and of all threads."""
        head = psutil.Process(self.served.process.pid)
        stages = [psutil.Process(w["pid"]) for w in self._workers() if w["role"] == "stage"]
        before = [_thread_times(process) for process in (head, *stages)]
        complete(self.served.url, self.served.model, PROMPT, self._max_tokens)
        after = [_thread_times(process) for process in (head, *stages)]
        used = [
            [end_s - began.get(thread, 0.0) for thread, end_s in ended.items()]
            for began, ended in zip(before, after, strict=True)
        ]
        all_s = sum(map(sum, used))
        computing_s = sum(max(threads) for threads in used[1:])
        return (all_s - computing_s) / self._max_tokens, all_s / self._max_tokens

    def _workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.served.url}/admin/status").json()["workers"]
        return found


def _thread_times(process: psutil.Process) -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "shoal")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pipelines = {name: Pipeline(name, arguments, Path(folder)) for name in FLAGS}
        try:
            for pipeline in pipelines.values():
                pipeline.wait_until_fed()
            pairs = [
                [pipeline.cpu_s_per_token() for pipeline in pipelines.values()]
                for _ in range(arguments.rounds)
            ]
        finally:
            for pipeline in pipelines.values():
                pipeline.served.stop()
    rest_alone_s, rest_fed_s = (median(pair[at][0] for pair in pairs) for at in (0, 1))
    all_alone_s, all_fed_s = (median(pair[at][1] for pair in pairs) for at in (0, 1))
    print(f"all threads: {1000 * all_alone_s:.2f} ms a token alone, {1000 * all_fed_s:.2f} ms fed")
    print(f"without computing: {1000 * rest_alone_s:.2f} ms alone, {1000 * rest_fed_s:.2f} ms fed")
    print(f"feeding costs {(rest_fed_s - rest_alone_s) / all_alone_s:+.1%} of all")


if __name__ == "__main__":
    main()
