"""One frozen class per process role. Default, unit and reason stand beside each field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.core.placement import Endpoint, NodeId, WorkerId
from shoal.core.specs import LayerRange

EngineKind = Literal["llama", "digest"]


MAX_BATCH_TOKENS = 128


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one slice is loaded. Equal on every worker of a pipeline, but for the paths.

    n_ctx: tokens one sequence may have. cells: cache tokens over all sequences, at least n_ctx.
    max_batch_tokens: longest prefill chunk; 128 keeps the stages of a short pipeline busy
    without costing much matrix-multiply efficiency on CPUs. threads: of the compute pool.
    gpu_layers: layers offloaded where the build has a GPU backend; -1 is all. repack: weights are kept in
    a layout of llama.cpp's for this CPU, or as in the file, which Shoal's row kernels need; None: whichever
    is faster for what the slice holds (docs/PERFORMANCE.md). invariant: what is
    computed does not depend on what else is (docs/MODES.md); the CPU then computes everything, and
    each sequence has n_ctx cells of its own, whatever `cells` says.
    """

    kind: EngineKind
    slice_path: Path | None
    embedding_path: Path | None
    n_ctx: int = 4096
    cells: int = 16384
    max_sequences: int = 16
    max_batch_tokens: int = MAX_BATCH_TOKENS
    threads: int = 1
    gpu_layers: int = -1
    n_vocab: int = 0
    repack: bool | None = None
    invariant: bool = False


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker process is told when it starts.

    num_layers: of the whole model; with `layers` it says whether this is the first or last
    stage. listen_address: where sockets bind, loopback by default. driver: where the head listens;
    only its key is allowed in before it names more. lease_s: the worker ends itself when it has not
    heard from the head for this long. journal_bytes: outputs kept to be sent again.
    """

    worker: WorkerId
    node: NodeId
    layers: LayerRange
    num_layers: int
    engine: EngineConfig
    driver: Endpoint
    listen_address: str = "127.0.0.1"
    lease_s: float = 30.0
    journal_bytes: int = 512 * 2**20

    @property
    def is_first(self) -> bool:
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        return self.layers.end == self.num_layers


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """How the driver schedules, admits and gives up.

    max_waiting: requests queued before new ones are refused. chunk_tokens: longest prefill
    chunk, at most the workers' max_batch_tokens. steps_in_flight: None means stages + 1, so
    that a stage finds its next step waiting when it ends one. least_chunk_tokens: shorter prompts are
    not cut further to keep more stages busy, as matrix products over fewer rows cost more than that
    saves. resend_after_s: an entry without a
    result for this long (or for 4x what its stages have been taking, if that is more) is sent
    again. max_resends: then its request ends with an error. invariant: steps are made of
    consecutive slots, as invariant engines need them. hop_deadline_s: what one stage sent on and
    the next has not received after this long, and the time its bytes take at
    slowest_link_bytes_per_s, is sent again, and then the link counts as cut.
    """

    max_waiting: int = 64
    chunk_tokens: int = 128
    least_chunk_tokens: int = 64
    steps_in_flight: int | None = None
    resend_after_s: float = 10.0
    max_resends: int = 5
    invariant: bool = False
    hop_deadline_s: float = 1.0
    slowest_link_bytes_per_s: float = 1.25e6
