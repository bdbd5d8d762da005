"""A served cluster whose workers a test kills, freezes and waits for."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.processes import wait_until
from tests.support.serve_process import ServeProcess

RESTORE_DEADLINE_S = 60.0


@dataclass
class KillCluster:
    """A `shoal serve` of three stages that has come up. num_holders: workers that hold each slice
    when all redundancy is there."""

    served: ServeProcess
    num_stages: int = 3
    num_holders: int = 2

    @property
    def url(self) -> str:
        return self.served.url

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = httpx.get(f"{self.url}/admin/status", timeout=30).json()
        except httpx.ConnectError as error:
            ended = self.served.process.poll()
            raise AssertionError(f"{error}; its exit status is {ended}:\n{self.served.output}") from error
        return found

    def owner_pids(self) -> list[int]:
        """Processes that carry the stages, in order."""
        owners = [worker for worker in self.status()["workers"] if worker["role"] == "stage"]
        assert [worker["stage"] for worker in owners] == list(range(self.num_stages))
        return [worker["pid"] for worker in owners]

    def holders(self) -> dict[int, list[dict[str, Any]]]:
        """Live workers by the stage whose layers they hold; its owner first."""
        found: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for worker in self.status()["workers"]:
            if worker["state"] != "lost":
                found[worker["stage"]].append(worker)
        return found

    def losses(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["losses"]
        return found

    def steps_of(self, stage: int) -> int:
        return int(self.status()["workers"][stage]["steps"])

    def wait_until_whole(self) -> None:
        """Until it is ready and every slice is held as often as it should be."""

        def is_whole() -> bool:
            holders = self.holders()
            counts = [len(holders[stage]) for stage in range(self.num_stages)]
            return min(counts) >= self.num_holders and bool(self.status()["ready"])

        wait_until(is_whole, deadline_s=RESTORE_DEADLINE_S, what="all redundancy")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
