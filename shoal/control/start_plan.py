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

from shoal.control.layer_split import CacheNeed, Node, check_cuts, check_memory, split_layers
from shoal.control.node_memory import usable_memory_bytes
from shoal.core.config import EngineKind
from shoal.core.errors import ConfigError, IllegalCut
from shoal.core.placement import NodeId
from shoal.core.specs import LayerRange, ModelSpec
from shoal.model.catalog import resolve
from shoal.model.spec_reader import legal_cuts, read_spec, why_illegal

DEFAULT_NODES = 3
DEFAULT_CTX = 4096
DEFAULT_CELLS = 16384  # cache tokens over all sessions: four full contexts
JOURNAL_BYTES = 512 * 2**20  # the bound of one worker's journal
THIS_MACHINE = "this machine"


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
    for if that is less. home: where models and slices are kept. state_root: where Ray lives.
    """

    model: str
    home: Path
    state_root: Path
    num_nodes: int | None = None
    cuts: tuple[int, ...] | None = None
    threads: int | None = None
    n_ctx: int | None = None
    engine: EngineKind = "llama"


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The stages to start: `ranges[i]` on `nodes[i]`."""

    model_path: Path
    spec: ModelSpec
    ranges: tuple[LayerRange, ...]
    nodes: tuple[NodeId, ...]
    threads: int
    n_ctx: int
    cells: int

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
    cells = max(DEFAULT_CELLS, n_ctx)
    cache = CacheNeed(cells, JOURNAL_BYTES)
    usable_bytes = usable_memory_bytes()
    nodes = [Node(NodeId(f"local-{index}"), THIS_MACHINE, usable_bytes) for index in range(num_nodes)]
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
        nodes=tuple(node.node for node in nodes),
        threads=_threads(config, num_nodes),
        n_ctx=n_ctx,
        cells=cells,
    )


def _num_nodes(config: ServeConfig) -> int:
    if config.cuts is None:
        return DEFAULT_NODES if config.num_nodes is None else config.num_nodes
    num_slices = len(config.cuts) + 1
    if config.num_nodes not in (None, num_slices):
        raise ConfigError(
            f"--cuts with {len(config.cuts)} layers makes {num_slices} slices, "
            f"but --nodes says {config.num_nodes}.",
            next_step=f"Leave --nodes away, or use --nodes {num_slices}.",
        )
    return num_slices


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


def _threads(config: ServeConfig, num_nodes: int) -> int:
    if config.threads is not None:
        return config.threads
    # Hyper-threads share the units that matrix products use; a container may have fewer cores.
    physical = psutil.cpu_count(logical=False) or 1
    return max(1, min(physical, len(os.sched_getaffinity(0))) // num_nodes)


def _check_ranges(path: Path, spec: ModelSpec, ranges: tuple[LayerRange, ...]) -> None:
    for layers in ranges:
        reason = why_illegal(path, layers)
        if reason is not None:
            raise IllegalCut(
                f"Layers {layers} of {spec.name} cannot be a slice: {reason}.",
                next_step="Choose other --cuts; `shoal inspect` lists the legal ones.",
            )
