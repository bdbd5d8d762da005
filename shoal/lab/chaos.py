"""Faults under streams of our own, one a round: what each cost, and whether every text was right.

Drives a cluster through its API and its processes' signals, as anybody on this machine could; knows
nothing of how it recovers.
"""

from __future__ import annotations

import ipaddress
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import httpx
import msgspec

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.status import ClusterStatus, LossStatus
from shoal.gateway.client import ApiClient, ClientError, Endpoint
from shoal.lab.faults import THAW_AFTER_S, FaultKind, Victim
from shoal.lab.watched_stream import StreamThread, WatchedStream

RESTORE_DEADLINE_S = 300.0
ROUND_DEADLINE_S = 600.0
POLL_S = 0.1
SUBJECTS = ("the tide", "a herring", "a lighthouse", "the moon", "salt", "a harbour", "rain", "a map")


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """num_streams: at once, in each round. max_tokens: of each. seed: chooses victims and moments."""

    kinds: tuple[FaultKind, ...]
    num_rounds: int
    num_streams: int
    max_tokens: int = 64
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One fault. stage: of the victim. rung: how it was replaced, as the head says. predicted_s: the
    head's prediction of the stall. stalls_s, step_s: as the streams saw them. are_right: whether
    each text is that of the unbroken run; None where that cannot be told. errors: of streams that
    broke off."""

    kind: FaultKind
    stage: int
    rung: str
    predicted_s: float | None
    stalls_s: tuple[float, ...]
    step_s: float
    are_right: bool | None
    errors: tuple[str, ...]


class Chaos:
    """report: called with a line for people whenever something begins."""

    def __init__(self, endpoint: Endpoint, config: ChaosConfig, report: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._config = config
        self._report = report
        self._client = ApiClient(endpoint)
        self._rng = random.Random(config.seed)
        self._gone: set[str] = set()  # nodes that were sent away

    def close(self) -> None:
        self._client.close()

    def status(self) -> ClusterStatus:
        try:
            return msgspec.convert(self._client.cluster_status(), ClusterStatus)
        except msgspec.ValidationError as error:
            raise ClientError(
                f"The server's status is of another version ({error}).",
                next_step="Use the same Shoal version on both.",
            ) from None

    def run(self) -> list[Round]:
        """All rounds. Raises ConfigError for a cluster that must not be harmed from here, ClientError
        when it does not recover."""
        status = self.status()
        check_is_here(self._endpoint, status)
        self._num_holders = min(Counter(w.stage for w in status.workers if w.state != "lost").values())
        bodies = [self._body(status.model, number) for number in range(self._config.num_streams)]
        self._report("The unbroken answers ...")
        unbroken = [self._stream_all([body])[0].text for body in bodies]
        can_compare = len(bodies) == 1 or status.mode == "invariant"
        return [
            self._round(number, bodies, unbroken if can_compare else None)
            for number in range(self._config.num_rounds)
        ]

    def _round(
        self, number: int, bodies: Sequence[dict[str, object]], unbroken: Sequence[str] | None
    ) -> Round:
        self._wait_until_whole()
        kind = self._config.kinds[number % len(self._config.kinds)]
        victim = self._choose_victim(kind)
        num_pieces = self._rng.choice([0, 1, 7, self._config.max_tokens // 3])
        self._report(
            f"Round {number + 1}: {kind.value} {victim.worker.node}, stage {victim.worker.stage} ..."
        )
        threads = self._begin(bodies)
        threads[0].wait_for_pieces(num_pieces)
        fault_s = time.monotonic()
        victim.strike(kind, self._client)
        streams = self._await(threads)
        if kind is FaultKind.STOP:
            time.sleep(max(0.0, fault_s + THAW_AFTER_S - time.monotonic()))
            victim.thaw()
        if kind is FaultKind.LEAVE:
            self._gone.add(victim.worker.node)
        loss = self._loss_of(victim)
        return Round(
            kind=kind,
            stage=victim.worker.stage,
            rung="handed over" if kind is FaultKind.LEAVE else _outcome(loss),
            predicted_s=None if loss is None else loss.predicted_stall_s,
            stalls_s=tuple(stream.stall_s(fault_s) for stream in streams),
            step_s=median(stream.step_s for stream in streams),
            are_right=None if unbroken is None else [stream.text for stream in streams] == list(unbroken),
            errors=tuple(str(stream.error) for stream in streams if stream.error is not None),
        )

    # ------------------------------------------------------------ streams

    def _body(self, model: str, number: int) -> dict[str, object]:
        question = f"Tell me about {SUBJECTS[number % len(SUBJECTS)]}, part {number + 1}."
        return {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self._config.max_tokens,
            "temperature": 0,
            "seed": number,
            "ignore_eos": True,
        }

    def _begin(self, bodies: Sequence[dict[str, object]]) -> list[StreamThread]:
        threads = [StreamThread(self._endpoint, body) for body in bodies]
        for thread in threads:
            thread.start()
        return threads

    def _await(self, threads: Sequence[StreamThread]) -> list[WatchedStream]:
        give_up_s = time.monotonic() + ROUND_DEADLINE_S
        for thread in threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
            if thread.is_alive():
                raise ClientError(f"A stream has not ended within {ROUND_DEADLINE_S:.0f} s.")
        return [thread.stream for thread in threads]

    def _stream_all(self, bodies: Sequence[dict[str, object]]) -> list[WatchedStream]:
        streams = self._await(self._begin(bodies))
        for stream in streams:
            if stream.error is not None:
                raise stream.error
        return streams

    # ------------------------------------------------------------ the cluster

    def _choose_victim(self, kind: FaultKind) -> Victim:
        status = self.status()
        victim = Victim(self._rng.choice([worker for worker in status.workers if worker.role == "stage"]))
        if kind is FaultKind.LEAVE and len({worker.node for worker in status.workers}) < 2:
            raise ConfigError(
                "Only one node is left, and it cannot leave.",
                next_step="Use fewer rounds of leave, or start with more --nodes or --spares.",
            )
        return victim

    def _wait_until_whole(self) -> None:
        """Until every slice is held as often as in the beginning, or as there are nodes for it."""
        give_up_s = time.monotonic() + RESTORE_DEADLINE_S
        while not self._is_whole(self.status()):
            if time.monotonic() > give_up_s:
                raise ClientError(
                    f"The cluster has not come back to what it was within {RESTORE_DEADLINE_S:.0f} s.",
                    next_step="See `shoal status`.",
                )
            time.sleep(POLL_S)

    def _is_whole(self, status: ClusterStatus) -> bool:
        live = [worker for worker in status.workers if worker.state != "lost"]
        nodes = {worker.node for worker in live}
        if not status.ready or nodes & self._gone:
            return False
        holders = Counter(worker.stage for worker in live)
        num_needed = min(self._num_holders, len(nodes))
        return all(holders[worker.stage] >= num_needed for worker in status.workers)

    def _loss_of(self, victim: Victim) -> LossStatus | None:
        losses = [loss for loss in self.status().losses if loss.worker == victim.worker.worker]
        return losses[-1] if losses else None


def check_is_here(endpoint: Endpoint, status: ClusterStatus) -> None:
    """Raise ConfigError for a cluster that is not wholly on this machine, or that has nobody to lose."""
    host = httpx.URL(endpoint.api_root).host
    addresses = {worker.address.rpartition(":")[0] for worker in status.workers}
    elsewhere = [address for address in (host, *sorted(addresses)) if not _is_loopback(address)]
    if elsewhere:
        raise ConfigError(
            f"{elsewhere[0]} is not this machine: chaos is done to local clusters only.",
            next_step="Start one with `shoal serve MODEL`, and try it there.",
        )


def _outcome(loss: LossStatus | None) -> str:
    if loss is None:
        return "not lost"
    return loss.rung or loss.end


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def failed(rounds: Sequence[Round]) -> ShoalError | None:
    """What is to be said when a text was wrong or a stream broke off; None when all was well."""
    wrong = sum(done.are_right is False for done in rounds)
    broken = sum(len(done.errors) for done in rounds)
    if not wrong and not broken:
        return None
    first = next((error for done in rounds for error in done.errors), "")
    return ClientError(f"{wrong} rounds with a wrong text, {broken} streams that broke off. {first}".strip())
