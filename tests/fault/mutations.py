"""Proof that the tests of recovery can fail: each rule is broken in turn, in a copy of the code,
and a fault test must notice, or else a unit test of the policy. Run it with
`make prove-fault-tests`; it is no test itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = os.environ.get("SHOAL_MUTATION_SEEDS", "300")
DEADLINE_S = 600.0
POLICIES = (
    "tests/unit/worker",
    "tests/unit/pipeline",
    "tests/unit/control/test_recovery.py",
    "tests/unit/control/test_keeper.py",
)
SUITES = ("tests/fault", " ".join(POLICIES))


@dataclass(frozen=True)
class Mutation:
    """In `file`, `old` (found exactly once) becomes `new`: the rule named is broken."""

    rule: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "what is held is not computed again",
        "shoal/worker/batch.py",
        "tokens = entry.tokens[residency.held - entry.start :]",
        "tokens = entry.tokens",
    ),
    Mutation(
        "other tokens at a held position are refused",
        "shoal/worker/residency.py",
        "return overlap <= 0 or tuple(self.tokens[start : start + overlap]) == tokens[:overlap]",
        "return overlap <= 0",
    ),
    Mutation(
        "what is missing is pulled",
        "shoal/worker/protocol.py",
        "                self._pulling.pull(residency, entry.start, now_s)\n            return None",
        "                pass\n            return None",
    ),
    Mutation(
        "pulls are sent again",
        "shoal/worker/pulling.py",
        "if pull is not None and pull.queued_parts == 0 and pull.deadline_s <= now_s:",
        "if False:",
    ),
    Mutation(
        "who cannot answer a pull yet says that it has come",
        "shoal/worker/pulling.py",
        "        if requester in residency.waiters:\n            self.confirm(pull)\n",
        "",
    ),
    Mutation(
        "pulls that nobody answers are told of",
        "shoal/worker/pulling.py",
        "            self._outbox.send(DRIVER, Unanswered(self.epoch, me, residency.predecessor))\n",
        "",
    ),
    Mutation(
        "what comes late is not worth the state",
        "shoal/worker/pulling.py",
        "        drawn_from = max(entry.stop, residency.opened.prompt_tokens)",
        "        return False",
    ),
    Mutation(
        "who has no journal pulls too",
        "shoal/worker/protocol.py",
        "if not answered and residency.opened is not None and not self._expects(residency):",
        "if False:",
    ),
    Mutation(
        "what was pulled is not sent on",
        "shoal/worker/pulling.py",
        "Task(step, [part], now_s, forward=False) for part in reversed(parts)",
        "Task(step, [part], now_s, forward=True) for part in reversed(parts)",
    ),
    Mutation(
        "a failed computation is not held",
        "shoal/worker/protocol.py",
        "                num_failures = residency.failed()\n                self._sessions.lose(residency)",
        "                num_failures = residency.failed()",
    ),
    Mutation(
        "older epochs' results are refused",
        "shoal/pipeline/protocol.py",
        "if route is None or result.epoch != route.epoch or result.sender != route.stages[-1]:",
        "if route is None:",
    ),
    Mutation(
        "who has left the placement is not heard",
        "shoal/pipeline/protocol.py",
        "            return  # somebody who has left the placement cannot speak for it",
        "            stage = 0",
    ),
    Mutation(
        "steps flow only when everybody has confirmed",
        "shoal/pipeline/route.py",
        "return not self._standbys and not self._stages",
        "return True",
    ),
    Mutation(
        "unfinished entries are sent again along the new route",
        "shoal/pipeline/protocol.py",
        "                self._send_again(self._route, record, now_s)",
        "                pass",
    ),
    Mutation(
        "a repeated result emits nothing",
        "shoal/pipeline/protocol.py",
        "            del session.in_flight[start]\n",
        "",
    ),
    Mutation(
        "steps past their deadline are sent again",
        "shoal/pipeline/protocol.py",
        "            self._steps.resent(record, now_s)\n            self._send_again(route, record, now_s)",
        "            self._steps.resent(record, now_s)",
    ),
    Mutation(
        "a link that loses a step twice counts as cut",
        "shoal/pipeline/protocol.py",
        "if self._steps.hop_lost(record, now_s):",
        "if self._steps.hop_lost(record, now_s) and False:",
    ),
    Mutation(
        "room is given away only when every stage has confirmed",
        "shoal/pipeline/closings.py",
        "        if closing.workers:\n            return False",
        "",
    ),
    Mutation(
        "a close that is not confirmed is sent again",
        "shoal/pipeline/closings.py",
        "closing.tell_again_s = now_s + self._tell_again_s",
        "closing.tell_again_s = float('inf')",
    ),
    Mutation(
        "a stage without an owner gets one that lives",
        "shoal/control/recovery.py",
        "        owners[layers] = min(candidates, key=cost)",
        "        pass",
    ),
    Mutation(
        "what nobody holds is loaded where there is room",
        "shoal/control/recovery.py",
        "            starts.append(Start(node, layers))\n    return Decision(None",
        "            pass\n    return Decision(None",
    ),
    Mutation(
        "standbys make room for a stage that nobody holds",
        "shoal/control/recovery.py",
        "        return victims if self._bytes(victims) >= missing else []",
        "        return []",
    ),
    Mutation(
        "a new route is a new epoch",
        "shoal/control/recovery.py",
        "epoch = current.epoch if current.stages == stages else Epoch(current.epoch + 1)",
        "epoch = current.epoch",
    ),
    Mutation(
        "a lone stream is computed again in its own chunks",
        "shoal/worker/pulling.py",
        "        if waiter.exact:",
        "        if False:",
    ),
    Mutation(
        "sessions are handed over with their journal",
        "shoal/worker/hand_over.py",
        "rows is None or begin < 0 else rows[begin : begin + length]",
        "rows is None or begin < 0 else rows[begin : begin + length] * 0",
    ),
    Mutation(
        "a hot standby is fed",
        "shoal/worker/protocol.py",
        "            self._outbox.send(standby, fed, rows)",
        "            pass",
    ),
    Mutation(
        "standbys know of a stage before it feeds them",
        "shoal/pipeline/route.py",
        "unconfirmed = self._standbys or self._stages",
        "unconfirmed = self._standbys | self._stages",
    ),
    Mutation(
        "a hot standby takes over before a warm one",
        "shoal/control/recovery.py",
        "return worker.node in facts.leaving, not is_hot, carried[worker.node], worker.worker",
        "return worker.node in facts.leaving, False, carried[worker.node], worker.worker",
    ),
    Mutation(
        "an owner that lives is not moved",
        "shoal/control/recovery.py",
        "owners = {stage.layers: stage for stage in stages if stage.worker in live}",
        "owners: dict[LayerRange, WorkerInfo] = {}",
    ),
    Mutation(
        "a successor is not exchanged in the middle of a hand-over",
        "shoal/control/recovery.py",
        "return not awaits_states, rung_of(",
        "return False, rung_of(",
    ),
    Mutation(
        "what is asked of a predecessor that is gone is asked of the new one",
        "shoal/worker/protocol.py",
        "                self._pulling.ask_again(residency, now_s)",
        "                pass",
    ),
    Mutation(
        "states that will come are waited for",
        "shoal/worker/pulling.py",
        "if residency.held == 0 and now_s < self.awaits_states_until_s:",
        "if False:",
    ),
    Mutation(
        "a damaged state is not restored",
        "shoal/worker/hand_over.py",
        "if flat.size != blob_floats + num_rows * self._row_width:",
        "if False:",
    ),
    Mutation(
        "a hand-over is complete only with every session",
        "shoal/pipeline/hand_overs.py",
        "is_complete = leaving.expected is not None and all(",
        "is_complete = leaving.expected is not None and any(",
    ),
    Mutation(
        "a journal that is full gives way",
        "shoal/worker/residency_table.py",
        "            self.num_cuts += self.budget.make_room(residency, len(tokens), self._sessions.values())",
        "            pass",
    ),
    Mutation(
        "state without its journal is not held",
        "shoal/worker/protocol.py",
        "        self.num_long_pulls += 1\n        self._sessions.lose(residency)",
        "        self.num_long_pulls += 1",
    ),
    Mutation(
        "who is asked for rows that were cut starts over",
        "shoal/worker/pulling.py",
        "                self._unanswerable.append(residency)",
        "                pass",
    ),
    Mutation(
        "who is asked stays within reach of who asks",
        "shoal/worker/pulling.py",
        "            pull.is_held_back = True\n            return True",
        "            pass",
    ),
    Mutation(
        "a loss is told to the driver",
        "shoal/control/keeper.py",
        "            return\n        self._driver.lose_worker(worker)",
        "            return",
    ),
)


def main() -> int:
    """Break each rule in turn; the exit status is the number of rules nobody missed."""
    wanted = sys.argv[1:]
    survived = []
    for mutation in MUTATIONS:
        if wanted and not any(word in mutation.rule for word in wanted):
            continue
        caught_by = _caught_by(mutation)
        print(f"{mutation.rule}: {caught_by or 'NOT NOTICED'}", flush=True)
        if caught_by is None:
            survived.append(mutation.rule)
    return len(survived)


def _caught_by(mutation: Mutation) -> str | None:
    for tree in _mutated_tree(mutation):
        for suite in SUITES:
            failure = _first_failure(tree, suite)
            if failure is not None:
                return failure
    return None


def _first_failure(tree: Path, suite: str) -> str | None:
    environment = {**os.environ, "PYTHONPATH": str(tree), "SHOAL_FAULT_SEEDS": SEEDS}
    paths = [path for path in suite.split() if (tree / path).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *paths, "-p", "no:cacheprovider"]
    try:
        result = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {DEADLINE_S:.0f} s"
    if result.returncode == 0:
        return None
    failures = [line for line in result.stdout.splitlines() if line.startswith("FAILED ")]
    if result.returncode != 1 or not failures:
        raise RuntimeError(f"{suite}: pytest could not run\n{result.stdout}{result.stderr}")
    return failures[0].removeprefix("FAILED ").split(" - ")[0]


def _mutated_tree(mutation: Mutation) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        shutil.copytree(ROOT / "shoal", tree / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "tests/fault/test_mutations.py").unlink()  # it would notice every one, as it should
        shutil.copy(ROOT / "pyproject.toml", tree)
        path = tree / mutation.file
        source = path.read_text()
        if source.count(mutation.old) != 1:
            raise RuntimeError(
                f"{mutation.rule}: found {source.count(mutation.old)} times in {mutation.file}"
            )
        path.write_text(source.replace(mutation.old, mutation.new))
        yield tree


if __name__ == "__main__":
    sys.exit(main())
