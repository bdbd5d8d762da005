"""What it costs to lose a machine, rung by rung, as a streaming client sees it.

    python -m benchmarks.recovery model.gguf --prompt-tokens 512 --rounds 5 --out recovery.json

For each rung it starts `shoal serve` on local nodes of one thread so that just this rung can be taken,
kills owners of stages in the middle of an answer, and prints one row:

- stall: the longest silence after the kill, and that as a multiple of one step;
- load: from noticing the loss to having a successor; near 0 where one stood by;
- pull: from then on to the next token, but for one step (both by the head's own clock);
- prefill: from asking to the first token, unbroken, for a prompt as long as all tokens were at the kill;
- pull / prefill: seconds that the successor computed for each token that it pulled, as a multiple of what its
  stage computes for each token of a prompt of that length (both told by the workers);
- limit: what must hold for the p95, with this row's own load and pull.

Every text is compared with the unbroken one. The machine should be idle; the load that it had is printed.
Exit status 1 where a text differed or a limit was passed.
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
MAX_PULL_RATIO = 1.2
PINGED_S = 0.6  # until the head has asked every worker for its figures again

RUNGS = {
    "hot standby": ("--spares", "2", "--survive", "1"),
    "warm standby": ("--survive", "1"),
    "fresh worker": ("--survive", "0"),
    "warm standby, invariant": ("--survive", "1", "--invariant"),
}


@dataclass(frozen=True)
class Kill:
    """One owner that was killed. load_s, pull_s: as above. pull_ratio: None where nothing was pulled."""

    stage: int
    rung: str | None
    is_right: bool
    stall_s: float
    load_s: float
    pull_s: float
    pull_ratio: float | None


@dataclass(frozen=True)
class Row:
    """One rung."""

    rung: str
    kills: list[Kill]
    step_s: float
    prefill_s: float
    load: float

    @property
    def p95_s(self) -> float:
        return quantiles([kill.stall_s for kill in self.kills], n=20, method="inclusive")[-1]

    def median_of(self, name: str) -> float:
        return median(getattr(kill, name) for kill in self.kills)

    @property
    def pull_ratio(self) -> float | None:
        return median(ratios) if (ratios := [k.pull_ratio for k in self.kills if k.pull_ratio]) else None

    @property
    def limit_s(self) -> float:
        pull_s, load_s = (max(getattr(k, name) for k in self.kills) for name in ("pull_s", "load_s"))
        if self.rung.startswith("hot"):
            return 1.0
        return 2.0 + pull_s if self.rung.startswith("warm") else 3.0 + load_s + pull_s

    @property
    def problems(self) -> list[str]:
        found = []
        if wrong := sum(not kill.is_right for kill in self.kills):
            found.append(f"{self.rung}: {wrong} texts differed")
        if self.p95_s > self.limit_s:
            found.append(f"{self.rung}: p95 {self.p95_s:.2f} s is above {self.limit_s:.2f} s")
        if self.pull_ratio is not None and self.pull_ratio > MAX_PULL_RATIO:
            found.append(f"{self.rung}: a pull costs {self.pull_ratio:.2f} times the prefill")
        return found


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
        # First whatever is slow only once, then what the row is compared with.
        self._complete(self._prompt, self._arguments.max_tokens)
        s_per_token = self._prefill_s_per_token()
        unbroken = self._complete(self._prompt, self._arguments.max_tokens)
        as_long = _prompt(len(self._prompt) + KILL_AT, seed=2)
        prefills = [self._complete(as_long, 1) for _ in range(3)]
        kills = [self._killed(number, unbroken, s_per_token) for number in range(self._arguments.rounds)]
        return Row(
            rung=self._name,
            kills=kills,
            step_s=unbroken.step_s,
            prefill_s=median(timed.first_s for timed in prefills),
            load=os.getloadavg()[0],
        )

    def _killed(self, number: int, unbroken: Timed, s_per_token: list[float]) -> Kill:
        owners = self._wait_until_whole()
        victim = owners[number % len(owners)]
        before = self._pulled()
        killed_s = 0.0

        def on_piece(num_pieces: int) -> None:
            nonlocal killed_s
            if num_pieces == KILL_AT:
                killed_s = time.monotonic()
                os.kill(victim["pid"], signal.SIGKILL)

        timed = self._complete(self._prompt, self._arguments.max_tokens, on_piece)
        loss = next(loss for loss in self._status()["losses"] if loss["worker"] == victim["worker"])
        time.sleep(PINGED_S)
        pulled = [
            (tokens - before.get(worker, (0, 0.0))[0], seconds - before.get(worker, (0, 0.0))[1])
            for worker, (tokens, seconds) in self._pulled().items()
        ]
        num_tokens, pull_s = sum(tokens for tokens, _ in pulled), sum(seconds for _, seconds in pulled)
        load_s, stall_s = loss["replaced_s"] or 0.0, loss["stall_s"] or 0.0
        return Kill(
            stage=victim["stage"],
            rung=loss["rung"],
            is_right=timed.text == unbroken.text,
            stall_s=timed.stall_s(killed_s),
            load_s=load_s,
            pull_s=max(0.0, stall_s - load_s - unbroken.step_s),
            pull_ratio=pull_s / num_tokens / s_per_token[victim["stage"]] if num_tokens else None,
        )

    def _pulled(self) -> dict[str, tuple[int, float]]:
        """Tokens that each worker has pulled and computed so far, and seconds."""
        return {w["worker"]: (w["pulled_tokens"], w["pull_s"]) for w in self._status()["workers"]}

    def _prefill_s_per_token(self) -> list[float]:
        """What each stage's owner computes for one token of the prompt: the least of a few times."""
        found = []
        for seed in range(3, 6):
            time.sleep(PINGED_S)
            before = self._computed()
            self._complete(_prompt(len(self._prompt) + KILL_AT, seed), 1)
            time.sleep(PINGED_S)
            after = self._computed()
            found.append([(s1 - s0) / (n1 - n0) for (n0, s0), (n1, s1) in zip(before, after, strict=True)])
        return [median(stage) for stage in zip(*found, strict=True)]

    def _computed(self) -> list[tuple[int, float]]:
        owners = [worker for worker in self._status()["workers"] if worker["role"] == "stage"]
        return [(worker["computed_tokens"], worker["compute_s"]) for worker in owners]

    def _complete(self, prompt: list[int], max_tokens: int, on_piece: Any = lambda num_pieces: None) -> Timed:
        return complete(self.served.url, self.served.model, prompt, max_tokens, on_piece)

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
    """Markdown."""
    heads = ("rung", "stall p50", "p95", "limit", "load", "pull", "a step", "stall / step", "prefill")
    lines = [_line(*heads, "stall / prefill", "pull / prefill"), _line(*["---"] * 11)]
    for row in rows:
        p50 = row.median_of("stall_s")
        ratio = row.pull_ratio
        lines.append(
            _line(
                row.rung,
                f"{p50:.2f} s",
                f"{row.p95_s:.2f} s",
                f"{row.limit_s:.2f} s",
                f"{row.median_of('load_s'):.2f} s",
                f"{row.median_of('pull_s'):.2f} s",
                f"{1000 * row.step_s:.0f} ms",
                f"{p50 / row.step_s:.0f}",
                f"{row.prefill_s:.2f} s",
                f"{p50 / row.prefill_s:.2f}",
                "-" if ratio is None else f"{ratio:.2f}",
            )
        )
    load = max(row.load for row in rows)
    return "\n".join([*lines, "", f"Load average {load:.1f} on {os.cpu_count()} cores."])


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
    problems = [problem for row in rows for problem in row.problems]
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
