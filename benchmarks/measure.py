"""Shoal beside the undivided model, and beside llama.cpp's RPC where its binaries are named.

    python -m benchmarks.measure model.gguf --out results.json

Everything is loaded once and measured in turn, so that each figure has a partner of the same half
minute: a ratio is the median over such pairs. A pair counts only if other programs left the cores
alone; where that could not be had, the least disturbed pairs are used and the report says so.

LLAMA_SERVER and GGML_RPC_SERVER name llama.cpp's binaries, built with GGML_RPC=ON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from benchmarks.quiet import NUM_CORES, ForeignShare, used_s, wait_until_quiet
from benchmarks.servers import LlamaRpc, ShoalServe, UndividedProcess
from shoal.commands import api_load

RPC = "llama.cpp RPC"
TOKENS = {1: 48, 2: 40, 8: 16}
"""Tokens of each answer, by the number of streams: some seconds of decoding."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One round: the figure of each contender, CPU seconds it took, and what others used meanwhile."""

    figures: dict[str, float]
    cpu_s: dict[str, float]
    foreign_share: float


class Rounds:
    """Runs contenders in turn until there are enough quiet rounds."""

    def __init__(self, pids: dict[str, list[int]], options: argparse.Namespace) -> None:
        self._pids = pids
        self._all_pids = [pid for contender in pids.values() for pid in contender]
        self._options = options

    def run(self, name: str, contenders: dict[str, Callable[[], float]]) -> list[Pair]:
        wanted, pairs = self._options.pairs, list[Pair]()
        deadline_s = time.monotonic() + self._options.patience_s
        while sum(pair.foreign_share < self._options.quiet for pair in pairs) < wanted:
            if time.monotonic() > deadline_s and len(pairs) >= wanted:
                break
            wait_until_quiet(self._all_pids, self._options.quiet, deadline_s - time.monotonic())
            look = ForeignShare(self._all_pids)
            # Every other round backwards: whoever comes second finds a warmer, or hotter, machine.
            order = list(contenders)[:: 1 if len(pairs) % 2 else -1]
            figures, cpu_s = {}, {}
            for which in order:
                before_s = used_s(self._pids[which])
                figures[which] = contenders[which]()
                cpu_s[which] = used_s(self._pids[which]) - before_s
            pairs.append(Pair(figures, cpu_s, look.share()))
        best = sorted(pairs, key=lambda pair: pair.foreign_share)[:wanted]
        print(f"{name}: {len(pairs)} rounds, others used up to {max(p.foreign_share for p in best):.0%}")
        return best


class Api:
    """One server under load, from this process."""

    def __init__(self, url: str, model: str, extra: dict[str, object]) -> None:
        self._url, self._model, self._extra = url, model, extra
        self._generator = random.Random(7)

    def decode(self, num_streams: int) -> float:
        """Tokens a second, all streams together."""

        async def load(http: httpx.AsyncClient) -> list[api_load.StreamTimes]:
            return await api_load.decode(
                http,
                self._model,
                num_streams,
                num_tokens=TOKENS[num_streams],
                generator=self._generator,
                extra=self._extra,
            )

        return api_load.tokens_per_s(asyncio.run(self._with_client(load)))

    def first_token(self, num_tokens: int) -> float:
        """Seconds to the first token behind a prompt."""

        async def load(http: httpx.AsyncClient) -> list[api_load.StreamTimes]:
            return [
                await api_load.prefill(
                    http, self._model, num_tokens, generator=self._generator, extra=self._extra
                )
            ]

        return asyncio.run(self._with_client(load))[0].first_token_s

    async def _with_client(self, load: Callable[..., object]) -> list[api_load.StreamTimes]:
        async with httpx.AsyncClient(base_url=self._url, timeout=600) as http:
            return await load(http)  # type: ignore[misc, no-any-return]


def scenarios(
    undivided: UndividedProcess, apis: dict[str, Api], num_nodes: int
) -> dict[str, dict[str, Callable[[], float]]]:
    """What is measured, by name: each contender's figure, tokens a second or seconds."""
    made: dict[str, dict[str, Callable[[], float]]] = {}

    def add(name: str, whole: Callable[[], float], of_api: Callable[[Api], float]) -> None:
        made[name] = {"undivided": whole} | {
            which: (lambda api=api: of_api(api)) for which, api in apis.items()
        }

    for streams in TOKENS:
        threads = 1 if streams == 1 else num_nodes
        add(
            f"decode, {streams} stream{'s' if streams > 1 else ''}, tok/s",
            lambda streams=streams, threads=threads: undivided.ask(
                "decode", threads, streams, TOKENS[streams]
            ),
            lambda api, streams=streams: api.decode(streams),
        )
    for tokens in (1024, 2048):
        add(
            f"prefill of {tokens:,}, tok/s",
            lambda tokens=tokens: tokens / undivided.ask("prefill", num_nodes, tokens),
            lambda api, tokens=tokens: tokens / api.first_token(tokens),
        )
    for tokens in (32, 256):
        add(
            f"first token behind {tokens}, s",
            lambda tokens=tokens: undivided.ask("prefill", num_nodes, tokens),
            lambda api, tokens=tokens: api.first_token(tokens),
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("results.json"))
    parser.add_argument(
        "--nodes", type=int, default=2, help="one thread each; the undivided model gets as many"
    )
    parser.add_argument("--chunk-tokens", type=int, default=128, help="of the undivided model and of RPC")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quiet", type=float, default=0.05, help="share of the cores that others may use")
    parser.add_argument("--patience-s", type=float, default=120.0, help="for quiet, for each scenario")
    parser.add_argument("--no-repack", action="store_true", help="for both Shoal and the undivided model")
    parser.add_argument("--only", default="", help="scenarios whose name has this text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, Path(folder))
    options.out.write_text(json.dumps(results, indent=1))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    arguments = ["--nodes", str(options.nodes), "--threads", "1", "--survive", "0"]
    arguments += ["--no-repack"] if options.no_repack else []
    home = folder / "home"
    first = ShoalServe(options.model, home, folder / "serve.log", arguments)
    first.stop()
    with contextlib.ExitStack() as stack:
        serve = ShoalServe(options.model, home, folder / "serve.log", arguments)
        stack.callback(serve.stop)
        undivided = UndividedProcess(options.model, options.chunk_tokens, repack=not options.no_repack)
        stack.callback(undivided.stop)
        pids = {"undivided": [undivided.process.pid], "shoal": serve.pids}
        apis = {"shoal": Api(serve.url, serve.model, {})}
        if "LLAMA_SERVER" in os.environ and "GGML_RPC_SERVER" in os.environ:
            rpc = LlamaRpc(options.model, folder / "rpc.log", options.nodes, options.chunk_tokens)
            stack.callback(rpc.stop)
            pids[RPC] = rpc.pids
            apis[RPC] = Api(rpc.url, rpc.model, {"cache_prompt": False})
        rounds = Rounds(pids, options)
        found: dict[str, object] = {}
        # Ctrl-C keeps what there is.
        with contextlib.suppress(KeyboardInterrupt):
            for name, contenders in scenarios(undivided, apis, options.nodes).items():
                if options.only in name:
                    found[name] = [asdict(pair) for pair in rounds.run(name, contenders)]
        memory = serve.worker_rss_bytes()
    return {
        "machine": f"{NUM_CORES} cores, {_cpu_name()}",
        "model": serve.model,
        "layers": serve.layers,
        "quiet": options.quiet,
        "repack": not options.no_repack,
        "first_start_s": first.start_s,
        "second_start_s": serve.start_s,
        "worker_rss_bytes": memory,
        "scenarios": found,
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
