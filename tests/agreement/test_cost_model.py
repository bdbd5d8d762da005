"""The cost model's predictions against what Shoal was measured to do, with the allowed gap written down.

The machine: one core of an AMD EPYC (Zen 5) a stage, two stages of Qwen2.5-Coder-1.5B Q4_K_M,
[0, 15) and [15, 28), computed by llama.cpp's own kernels (`--repack`). Its printed
rate is 64 operations a cycle at 4 GHz. The deratings are those of the
catalogue's class of CPUs, two of which (compute, few_rows) were taken from the first slice alone,
one row and 128 rows at a time; everything below is prediction. Driver, client and both
stages share the two cores, which the model leaves out.
"""

from __future__ import annotations

import dataclasses

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.catalogue.machine import MachineKind
from shoal.core.specs import LayerRange
from shoal.planner.assumptions import default_assumptions
from shoal.planner.cost_model import StepShape, slice_time
from shoal.planner.model_source import find_model
from shoal.planner.pipeline import Pipeline, Stage

ALLOWED_GAP = 0.25

MEASURED_DECODE_TOK_PER_S = {1: 25.0, 2: 39.0, 8: 53.0}
MEASURED_PREFILL_TOK_PER_S = 126.0
MEASURED_SLICE_MS = {(LayerRange(15, 28), 1): 13.2, (LayerRange(15, 28), 128): 803.7}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="module")
def core(catalogue: Catalogue) -> MachineKind:
    """One core: printed figures, derated like any CPU of the catalogue."""
    return dataclasses.replace(
        catalogue.machine("desktop-ddr5"),
        name="zen5-core",
        memory_bytes_per_s=60e9,
        marketed_ops_per_s=64 * 4e9,
        usable_ops_per_s=64 * 4e9,
    )


@pytest.fixture(scope="module")
def pipeline(catalogue: Catalogue, core: MachineKind) -> Pipeline:
    model = find_model("qwen2.5-coder-1.5b", None, catalogue)
    pieces = [model.slice_demand(LayerRange(0, 15)), model.slice_demand(LayerRange(15, 28))]
    given = dataclasses.replace(default_assumptions(catalogue), context_tokens=256, max_step_tokens=8)
    return Pipeline(
        model,
        tuple(Stage(core, piece) for piece in pieces),
        (model.boundary_values[14],),
        catalogue.link("loopback"),
        given,
    )


@pytest.mark.parametrize(("streams", "measured"), MEASURED_DECODE_TOK_PER_S.items())
def test_decoding_is_predicted_within_a_quarter(pipeline: Pipeline, streams: int, measured: float) -> None:
    assert pipeline.decode_tok_per_s(streams) == pytest.approx(measured, rel=ALLOWED_GAP)


def test_prefill_is_predicted_within_a_quarter(pipeline: Pipeline) -> None:
    num_tokens = 1024
    assert num_tokens / pipeline.prefill_s(num_tokens) == pytest.approx(
        MEASURED_PREFILL_TOK_PER_S, rel=ALLOWED_GAP
    )


@pytest.mark.parametrize(("slice_and_rows", "measured_ms"), MEASURED_SLICE_MS.items())
def test_the_other_slice_is_predicted_from_the_first(
    pipeline: Pipeline, core: MachineKind, slice_and_rows: tuple[LayerRange, int], measured_ms: float
) -> None:
    layers, rows = slice_and_rows
    piece = dataclasses.replace(pipeline.model.slice_demand(layers), head_bytes=0, head_parameters=0)
    predicted = slice_time(piece, StepShape.prefill(rows, 0), core.speed)
    assert predicted.total_s * 1e3 == pytest.approx(measured_ms, rel=ALLOWED_GAP)
    assert predicted.bound == "compute"
