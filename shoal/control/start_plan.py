"""What `shoal serve` was asked for, and what that means for one model: its file, spec and slices.

Everything here is checked before any process is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil

from shoal.control.layer_split import (
    ROW_BYTES_PER_EMBD,
    CacheNeed,
    Node,
    check_cuts,
    check_memory,
    split_layers,
)
from shoal.control.node_memory import usable_memory_bytes
from shoal.core.config import MAX_BATCH_TOKENS, EngineKind
from shoal.core.errors import ConfigError, IllegalCut
from shoal.core.invariant_mode import Q8_0_PER_F16, cells_of_a_sequence
from shoal.core.journal_room import least_session_bytes, max_sessions
from shoal.core.placement import NodeId
from shoal.core.specs import LayerRange, ModelSpec
from shoal.model.known_models import resolve
from shoal.model.spec_reader import legal_cuts, read_spec, why_illegal, why_not_invariant

DEFAULT_NODES = 3
DEFAULT_CTX = 4096
DEFAULT_CELLS = 16384  # cache tokens over all sessions: four full contexts
MAX_SEQUENCES = 16
JOURNAL_BYTES = 512 * 2**20  # the bound of one worker's journals, by default
THIS_MACHINE = "this machine"
UNKNOWN_BYTES = 2**62  # memory of a machine that has not joined yet


class StartPhase(Enum):
    """What is being waited for, in order. Sizes are bytes for the first two, counts after."""

    FETCH = "Fetching the model"
    CUT = "Cutting slices"
    CLUSTER = "Starting Ray"
    LOAD = "Loading slices"
    WARM_UP = "Producing a first token"


Report = Callable[[StartPhase, int, int], None]
"""Called with (phase, done, in all) whenever one of them changes."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """One `shoal serve`.

    num_nodes: local nodes to pretend; None is 3, or one more than there are cuts. cuts: first
    layers of later stages; None splits by bytes. threads: of each worker; None shares the
    physical cores. n_ctx: tokens a sequence may have; None is 4096, or what the model was trained
    for if that is less. num_spares: local nodes more, that carry no stage. survive: machines that
    may be lost without loading weights, where memory allows. home: where models and slices are
    kept. state_root: where Ray lives. invariant: the mode (docs/MODES.md). repack: as in EngineConfig.
    join_listen: address and port at which other machines may join; None lets none in. wait_for: slices
    more than local nodes, each for a machine that will join. journal_bytes: what each worker may keep of
    what it has sent.
    """

    model: str
    home: Path
    state_root: Path
    num_nodes: int | None = None
    cuts: tuple[int, ...] | None = None
    threads: int | None = None
    n_ctx: int | None = None
    engine: EngineKind = "llama"
    invariant: bool = False
    repack: bool | None = None
    num_spares: int = 0
    survive: int = 1
    join_listen: tuple[str, int] | None = None
    wait_for: int = 0
    journal_bytes: int = JOURNAL_BYTES


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The stages to start: `ranges[i]` on `nodes[i]`, but for the last `num_awaited`, which machines
    that join will take; nodes beyond that are spare. cells: tokens over all sequences."""

    model_path: Path
    spec: ModelSpec
    ranges: tuple[LayerRange, ...]
    nodes: tuple[NodeId, ...]
    threads: int
    n_ctx: int
    cells: int
    max_sequences: int
    invariant: bool
    repack: bool | None
    survive: int
    journal_bytes: int
    num_awaited: int = 0

    @property
    def local_ranges(self) -> tuple[LayerRange, ...]:
        """What this machine's own nodes carry at first."""
        return self.ranges[: len(self.ranges) - self.num_awaited]

    @property
    def awaiting(self) -> tuple[LayerRange, ...]:
        """What waits for machines that join."""
        return self.ranges[len(self.ranges) - self.num_awaited :]

    @property
    def cache_need(self) -> CacheNeed:
        """What a worker takes beside its weights."""
        return cache_need(
            self.n_ctx, self.cells, self.max_sequences, self.journal_bytes, invariant=self.invariant
        )

    @property
    def model_id(self) -> str:
        """The name that clients ask for."""
        return self.model_path.stem


def make_start_plan(config: ServeConfig, report: Report) -> StartPlan:
    """Fetch the model if need be, read it, split it, and check that it fits.

    Raises ConfigError or one of its kinds (ModelFileError, UnsupportedModel, IllegalCut,
    InsufficientMemory, FetchError).
    """
    num_nodes = _num_nodes(config)
    report(StartPhase.FETCH, 0, 0)
    path = resolve(config.model, lambda done, total: report(StartPhase.FETCH, done, total), home=config.home)
    spec = read_spec(path)
    n_ctx = _n_ctx(config, spec)
    if config.invariant:
        _check_invariant(path, spec)
    cells, max_sequences = _room(n_ctx, invariant=config.invariant)
    _check_journal(config.journal_bytes, spec)
    cache = cache_need(n_ctx, cells, max_sequences, config.journal_bytes, invariant=config.invariant)
    usable_bytes = usable_memory_bytes()
    nodes = [Node(NodeId(f"local-{index}"), THIS_MACHINE, usable_bytes) for index in range(num_nodes)]
    # Nothing is known of them yet; whether a slice fits is seen when one has joined.
    nodes += [Node(NodeId(f"joins-{n}"), f"machine {n}", UNKNOWN_BYTES) for n in range(config.wait_for)]
    if config.cuts is None:
        ranges = split_layers(spec, legal_cuts(path), nodes, cache)
    else:
        ranges = check_cuts(spec, legal_cuts(path), config.cuts)
    _check_ranges(path, spec, ranges)
    if config.engine == "llama":  # the digest engine holds no weights
        check_memory(spec, ranges, nodes, cache)
    return StartPlan(
        model_path=path,
        spec=spec,
        ranges=ranges,
        nodes=tuple(NodeId(f"local-{index}") for index in range(num_nodes + config.num_spares)),
        threads=_threads(config, num_nodes),
        n_ctx=n_ctx,
        cells=cells,
        max_sequences=max_sequences,
        invariant=config.invariant,
        repack=config.repack,
        survive=config.survive,
        journal_bytes=config.journal_bytes,
        num_awaited=config.wait_for,
    )


def _num_nodes(config: ServeConfig) -> int:
    """Local nodes that carry a stage."""
    if config.wait_for and config.join_listen is None:
        raise ConfigError(
            "--wait-for waits for machines that join, but none can.",
            next_step="Add --join-listen with this machine's address on your network.",
        )
    if config.cuts is None:
        default = DEFAULT_NODES if config.join_listen is None else 1
        num_nodes = default if config.num_nodes is None else config.num_nodes
    else:
        num_nodes = _nodes_of_cuts(config, len(config.cuts) + 1)
    if num_nodes + config.wait_for < 1:
        raise ConfigError("There is no node to serve with.", next_step="Use --nodes 1 or --wait-for 1.")
    return num_nodes


def _nodes_of_cuts(config: ServeConfig, num_slices: int) -> int:
    num_nodes = num_slices - config.wait_for
    if num_nodes < 0 or config.num_nodes not in (None, num_nodes):
        awaited = f" and --wait-for {config.wait_for}" if config.wait_for else ""
        raise ConfigError(
            f"--cuts with {num_slices - 1} layers makes {num_slices} slices, "
            f"but --nodes says {config.num_nodes}{awaited}.",
            next_step=f"Leave --nodes away, or use --nodes {max(0, num_nodes)}.",
        )
    return num_nodes


def _n_ctx(config: ServeConfig, spec: ModelSpec) -> int:
    if config.n_ctx is None:
        return min(DEFAULT_CTX, spec.n_ctx_train)
    if config.n_ctx > spec.n_ctx_train:
        raise ConfigError(
            f"--ctx {config.n_ctx} is more than the {spec.n_ctx_train} tokens "
            f"that {spec.name} was trained for.",
            next_step=f"Use --ctx {spec.n_ctx_train} or less.",
        )
    return config.n_ctx


def _room(n_ctx: int, *, invariant: bool) -> tuple[int, int]:
    """Cells over all sequences, and how many sequences there may be."""
    cells = max(DEFAULT_CELLS, n_ctx)
    if not invariant:
        return cells, MAX_SEQUENCES
    # There every sequence has room for a whole context, at half the bytes a cell: as many as fit
    # in about the memory that default mode takes.
    max_sequences = min(MAX_SEQUENCES, 2 * cells // n_ctx)
    return n_ctx * max_sequences, max_sequences


def cache_need(
    n_ctx: int, cells: int, max_sequences: int, journal_bytes: int, *, invariant: bool
) -> CacheNeed:
    """What the caches of a mode take, and the journals."""
    if not invariant:
        return CacheNeed(cells, journal_bytes)
    return CacheNeed(cells_of_a_sequence(n_ctx) * max_sequences, journal_bytes, Q8_0_PER_F16)


def _check_journal(journal_bytes: int, spec: ModelSpec) -> None:
    row_bytes, batch_tokens = ROW_BYTES_PER_EMBD * spec.n_embd, MAX_BATCH_TOKENS
    if max_sessions(journal_bytes, row_bytes, batch_tokens) == 0:
        least_mib = -(-least_session_bytes(row_bytes, batch_tokens) // 2**20)
        raise ConfigError(
            f"--journal-mib {journal_bytes // 2**20} has no room for one request of {spec.name}, "
            f"which needs {least_mib}.",
            next_step=f"Use --journal-mib {least_mib} for one request at a time, or more.",
        )


def _check_invariant(path: Path, spec: ModelSpec) -> None:
    reason = why_not_invariant(path)
    if reason is not None:
        raise ConfigError(
            f"{spec.name} cannot be served in invariant mode: {reason}.",
            next_step="Leave --invariant away.",
        )


def physical_cores() -> int:
    """Cores that this process may use; hyper-threads share the units that matrix products use, and a
    container may have fewer."""
    return max(1, min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0))))


def _threads(config: ServeConfig, num_nodes: int) -> int:
    if config.threads is not None:
        return config.threads
    return max(1, physical_cores() // max(1, num_nodes))


def _check_ranges(path: Path, spec: ModelSpec, ranges: tuple[LayerRange, ...]) -> None:
    for layers in ranges:
        reason = why_illegal(path, layers)
        if reason is not None:
            raise IllegalCut(
                f"Layers {layers} of {spec.name} cannot be a slice: {reason}.",
                next_step="Choose other --cuts; `shoal inspect` lists the legal ones.",
            )
