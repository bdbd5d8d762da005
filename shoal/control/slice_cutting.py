"""The engine of each stage, its slice cut where the cache lacks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal.control.start_plan import Report, StartPhase, StartPlan
from shoal.core.config import EngineConfig, EngineKind
from shoal.core.specs import LayerRange
from shoal.model.paths import slices_folder
from shoal.model.store import SliceStore


def cut_engines(
    plan: StartPlan, kind: EngineKind, home: Path, report: Report
) -> dict[LayerRange, EngineConfig]:
    """How each layer range of a plan is loaded. Cuts slices into `home`'s store, with progress.

    Raises what cutting raises: ModelFileError, IllegalCut, ConfigError.
    """
    common = EngineConfig(
        kind=kind,
        slice_path=None,
        embedding_path=None,
        n_ctx=plan.n_ctx,
        cells=plan.cells,
        max_sequences=plan.max_sequences,
        invariant=plan.invariant,
        repack=plan.repack,
        threads=plan.threads,
        n_vocab=plan.spec.n_vocab,
    )
    if kind == "digest":
        return dict.fromkeys(plan.ranges, common)
    store = SliceStore(slices_folder(home))
    progress = _SumOfFiles(report, plan.spec.total_bytes)
    embedding = store.embedding_path(plan.model_path, plan.spec, progress.next_file())
    return {
        layers: replace(
            common,
            slice_path=store.slice_path(plan.model_path, plan.spec, layers, progress.next_file()),
            embedding_path=embedding if layers.start == 0 else None,
        )
        for layers in plan.ranges
    }


class _SumOfFiles:
    """Progress over several files that are cut one after the other. A file that the cache has
    reports nothing and counts when the next begins."""

    def __init__(self, report: Report, total_bytes: int) -> None:
        self._report = report
        self._total_bytes = total_bytes
        self._before_bytes = 0
        self._current_bytes = 0

    def next_file(self) -> Callable[[int, int], None]:
        self._before_bytes += self._current_bytes
        self._current_bytes = 0
        return self._progress

    def _progress(self, done_bytes: int, _: int) -> None:
        self._current_bytes = done_bytes
        done_bytes = min(self._before_bytes + done_bytes, self._total_bytes)
        self._report(StartPhase.CUT, done_bytes, self._total_bytes)
