"""What feeding hot standbys costs the pipeline: its processor time a token, with and without them.

    python -m benchmarks.feeding model.gguf

Runs `shoal serve` on two local nodes twice, once with a hot standby for each stage on nodes of their own,
and decodes one stream. On machines of their own, standbys take no core from the pipeline, so what they
cost it is the processor time that head and stages use more. Counted in processor time, which other
programs disturb less than they do throughput; runs alternate, and medians are compared.
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

    def cpu_s_per_token(self) -> float:
        """Of head and stages together; standbys are not counted."""
        stages = [worker["pid"] for worker in self._workers() if worker["role"] == "stage"]
        processes = [psutil.Process(pid) for pid in (self.served.process.pid, *stages)]
        before_s = sum(_used_s(process) for process in processes)
        complete(self.served.url, self.served.model, PROMPT, self._max_tokens)
        return (sum(_used_s(process) for process in processes) - before_s) / self._max_tokens

    def _workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.served.url}/admin/status").json()["workers"]
        return found


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


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
    alone, fed = (1000 * median(figures) for figures in zip(*pairs, strict=True))
    ratio = median(with_s / without_s for without_s, with_s in pairs)
    print(f"processor time a token: {alone:.2f} ms alone, {fed:.2f} ms fed; median of pairs {ratio - 1:+.1%}")
    print(", ".join(f"{with_s / without_s - 1:+.1%}" for without_s, with_s in pairs))


if __name__ == "__main__":
    main()
