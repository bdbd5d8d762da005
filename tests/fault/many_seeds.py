"""Far more seeds of the fault tests than the everyday suite has time for; no test itself.

    python -m tests.fault.many_seeds --seeds 50000

Runs seeds of machine faults, and a fifth as many of network faults, in two processes. Prints how far it is,
and for each seed that fails the reason and the command that replays it. Exit status 1 where one failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from tests.fault import test_machine_faults, test_network_faults

SUITES = {"machine": test_machine_faults, "network": test_network_faults}
NETWORK_SHARE = 5  # one seed of network faults for so many of machine faults
BLOCK_SEEDS = 50
PROGRESS_S = 10.0
MAX_FAILURES = 20  # then something is wrong altogether


@dataclass(frozen=True, slots=True)
class Block:
    """Seeds `[first, stop)` of one suite."""

    suite: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Failure:
    """One seed that broke a promise, and how."""

    suite: str
    seed: int
    trace: str

    @property
    def replay(self) -> str:
        path = os.path.relpath(str(SUITES[self.suite].__file__))
        return f"SHOAL_FAULT_SEED={self.seed} .venv/bin/pytest {path} -k one_seed"


def run_block(block: Block) -> list[Failure]:
    """Run each seed; those that failed."""
    failures = []
    for seed in range(block.first, block.stop):
        try:
            SUITES[block.suite].run_seed(seed)
        except Exception:  # whatever it is, it is this seed's
            failures.append(Failure(block.suite, seed, traceback.format_exc(limit=-3)))
    return failures


def blocks_of(first: int, num_seeds: int) -> Iterator[Block]:
    """All blocks, those of the two suites mixed."""
    stop, num_network = first + num_seeds, num_seeds // NETWORK_SHARE
    for start in range(first, stop, BLOCK_SEEDS):
        yield Block("machine", start, min(start + BLOCK_SEEDS, stop))
        if start - first < num_network:
            yield Block("network", start, min(start + BLOCK_SEEDS, first + num_network))


def run_all(blocks: list[Block], num_processes: int) -> list[Failure]:
    """Run all blocks, telling how far it is; ends early past MAX_FAILURES."""
    total = sum(block.stop - block.first for block in blocks)
    began_s = told_s = time.monotonic()
    num_done, failures = 0, list[Failure]()
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_block, block): block for block in blocks}
        for ended in as_completed(running):
            num_done += running[ended].stop - running[ended].first
            for failure in ended.result():
                failures.append(failure)
                print(f"{failure.trace}{failure.suite} faults, seed {failure.seed}", flush=True)
                print(f"replay: {failure.replay}\n", flush=True)
            now_s = time.monotonic()
            if now_s - told_s > PROGRESS_S or num_done == total:
                told_s = now_s
                left_s = (now_s - began_s) / num_done * (total - num_done)
                print(
                    f"{num_done} of {total} seeds, {len(failures)} failed, {now_s - began_s:.0f} s, "
                    f"about {left_s:.0f} s left",
                    flush=True,
                )
            if len(failures) > MAX_FAILURES:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    blocks = list(blocks_of(arguments.first, arguments.seeds))
    return 1 if blocks and run_all(blocks, arguments.processes) else 0


if __name__ == "__main__":
    sys.exit(main())
