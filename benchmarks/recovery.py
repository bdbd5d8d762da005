"""What it costs to lose a machine, rung by rung, as a streaming client sees it.

    python -m benchmarks.recovery model.gguf --prompt-tokens 512 --rounds 5 --out recovery.json

For each rung it starts `shoal serve` on local nodes of one thread so that just this rung can be taken,
kills owners of stages in the middle of an answer, and prints one row:

- stall: the longest silence after the kill, and that as a multiple of one step;
- prefill: from asking to the first token, unbroken, for a prompt as long as all tokens were at the kill;
- stage: what the busiest stage computed for those tokens in the first place, of the head's own account;
- pull / stage: the stall when that stage was killed, without that of a hot standby, which pulls nothing.

Every text is compared with the unbroken one. The machine should be idle; the load that it had
is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from benchmarks.servers import ShoalServe
from benchmarks.sse import Timed, complete

KILL_AT = 8
"""Pieces of the answer that have come when a stage is killed."""

RESTORE_DEADLINE_S = 300.0

RUNGS = {
    "hot standby": ("--spares", "2", "--survive", "1"),
    "warm standby": ("--survive", "1"),
    "fresh worker": ("--survive", "0"),
    "warm standby, invariant": ("--survive", "1", "--invariant"),
}


@dataclass(frozen=True)
class Row:
    """One rung. stages, stalls_s: of each round. stage_s: what each stage computed for the tokens that were
    there at the kill."""

    rung: str
    stalls_s: list[float]
    step_s: float
    prefill_s: float
    stages: list[int]
    stage_s: list[float]
    num_wrong: int
    rungs_taken: list[str | None]
    load: float


class Rung:
    """One `shoal serve`, and kills in it."""

    def __init__(self, name: str, arguments: argparse.Namespace, folder: Path) -> None:
        self._name = name
        self._arguments = arguments
        flags = ["--nodes", str(arguments.nodes), "--threads", "1", *RUNGS[name]]
        self.served = ShoalServe(arguments.model, arguments.home, folder / "log", flags)
        self._prompt = _prompt(arguments.prompt_tokens, seed=1)

    def measure(self) -> Row:
        self._wait_until_whole()
        unbroken = self._complete(self._prompt, self._arguments.max_tokens)
        as_long = _prompt(len(self._prompt) + KILL_AT, seed=2)
        prefills = [self._complete(as_long, 1) for _ in range(3)]
        stage_s = self._stage_seconds(unbroken.request_id)
        killed = [self._killed(number) for number in range(self._arguments.rounds)]
        return Row(
            rung=self._name,
            stalls_s=[stall_s for _, _, stall_s in killed],
            stages=[stage for _, stage, _ in killed],
            step_s=unbroken.step_s,
            prefill_s=median(timed.first_s for timed in prefills),
            stage_s=stage_s,
            num_wrong=sum(timed.text != unbroken.text for timed, _, _ in killed),
            rungs_taken=[loss["rung"] for loss in self._status()["losses"]],
            load=os.getloadavg()[0],
        )

    def _killed(self, number: int) -> tuple[Timed, int, float]:
        owners = self._wait_until_whole()
        victim = owners[number % len(owners)]
        killed_s = 0.0

        def on_piece(num_pieces: int) -> None:
            nonlocal killed_s
            if num_pieces == KILL_AT:
                killed_s = time.monotonic()
                os.kill(victim["pid"], signal.SIGKILL)

        timed = self._complete(self._prompt, self._arguments.max_tokens, on_piece)
        return timed, victim["stage"], timed.stall_s(killed_s)

    def _complete(self, prompt: list[int], max_tokens: int, on_piece: Any = lambda num_pieces: None) -> Timed:
        return complete(self.served.url, self.served.model, prompt, max_tokens, on_piece)

    def _stage_seconds(self, request_id: str) -> list[float]:
        """What each stage computed for the prompt and the first KILL_AT tokens."""
        [times] = httpx.get(
            f"{self.served.url}/admin/trace", params={"request_id": request_id}, timeout=30
        ).json()["answers"]
        columns = [at for at, name in enumerate(times["columns"]) if name.endswith("compute")]
        decode = times["tokens"][: KILL_AT - 1]
        return [times["prefill"][at] + sum(row[at] for row in decode) for at in columns]

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.served.url}/admin/status", timeout=30).json()
        return found

    def _wait_until_whole(self) -> list[dict[str, Any]]:
        """Until some stage can be lost on this rung, and nothing is being loaded any more: the owners
        of such stages."""
        role = self._name.partition(",")[0]
        give_up_s = time.monotonic() + RESTORE_DEADLINE_S
        while time.monotonic() < give_up_s:
            status = self._status()
            live = [worker for worker in status["workers"] if worker["state"] != "lost"]
            owners = [worker for worker in live if worker["role"] == "stage"]
            standbys = {worker["stage"]: worker["role"] for worker in live if worker not in owners}
            if role == "fresh worker":
                fit = owners
            else:
                fit = [owner for owner in owners if standbys.get(owner["stage"]) == role]
            is_whole = role == "fresh worker" or len(standbys) == len(owners)
            if status["ready"] and is_whole and fit:
                return fit
            time.sleep(0.1)
        raise SystemExit(f"redundancy did not come back: {status}")


def _prompt(num_tokens: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(300, 5000) for _ in range(num_tokens)]


def table(rows: list[Row]) -> str:
    """Markdown. The pull is counted against the hot standby's stall, loading against the warm one's."""
    hot_s = next((median(row.stalls_s) for row in rows if row.rung == "hot standby"), 0.0)
    heads = ("rung", "stall p50", "p95", "a step", "stall / step", "prefill", "stall / prefill", "stage")
    lines = [_line(*heads, "pull / stage"), _line(*["---"] * 9)]
    for row in rows:
        p50 = median(row.stalls_s)
        p95 = quantiles(row.stalls_s, n=20, method="inclusive")[-1]
        lines.append(
            _line(
                row.rung,
                f"{p50:.2f} s",
                f"{p95:.2f} s",
                f"{1000 * row.step_s:.0f} ms",
                f"{p50 / row.step_s:.0f}",
                f"{row.prefill_s:.2f} s",
                f"{p50 / row.prefill_s:.2f}",
                f"{max(row.stage_s):.2f} s",
                f"{_pull_ratio(row, hot_s):.2f}" if row.rung.startswith("warm") else "-",
            )
        )
    wrong, load = sum(row.num_wrong for row in rows), max(row.load for row in rows)
    conditions = f"{wrong} texts differed. Load average {load:.1f} on {os.cpu_count()} cores."
    return "\n".join([*lines, "", conditions])


def _pull_ratio(row: Row, hot_s: float) -> float:
    """Of the stage that computes most: in a short one the pull is lost in the rest of the stall."""
    most_s = max(row.stage_s)
    return median(
        (stall_s - hot_s) / most_s
        for stage, stall_s in zip(row.stages, row.stalls_s, strict=True)
        if row.stage_s[stage] == most_s
    )


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rungs", nargs="+", choices=list(RUNGS), default=list(RUNGS))
    parser.add_argument("--home", type=Path, default=Path.home() / ".cache" / "shoal")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.rungs:
        with tempfile.TemporaryDirectory() as folder:
            rung = Rung(name, arguments, Path(folder))
            try:
                rows.append(rung.measure())
            finally:
                rung.served.stop()
        print(rows[-1], flush=True)
    print(table(rows))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
