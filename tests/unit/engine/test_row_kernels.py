"""Row kernels give llama.cpp's bits, or do not serve."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.core.config import EngineConfig
from shoal.core.specs import LayerRange
from shoal.engine import row_kernels
from shoal.engine.interface import Chunk
from shoal.engine.llama_engine import LlamaEngine
from shoal.engine.llama_library import llama_cpp, native
from shoal.engine.llama_runtime import LlamaRuntime, llama_runtime, tried
from shoal.engine.matrices import row_kernels_serve_most
from shoal.engine.row_kernels import MOST_ROWS, RowKernels, load_row_kernels
from shoal.engine.row_kernels_check import agree_with_llama
from shoal.model.slicing import cut_embedding, cut_slice
from tests.support.quantise import quantised
from tests.support.tiny_models import Architecture, write_tiny_model

NUM_LAYERS = 2
LAYERS = LayerRange(0, 1)  # not the last: its rows come out
NUM_SEQUENCES = 7  # more would be tiled without the kernels, which rounds otherwise


@pytest.fixture
def kernels() -> Iterator[RowKernels]:
    """The process's, left as they were."""
    if "avx512_vnni" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU lacks AVX-512 VNNI")
    kernels = llama_runtime().row_kernels
    assert kernels is not None, "they are compiled when Shoal is installed, and this CPU suits them"
    most_rows = kernels.most_rows
    yield kernels
    kernels.serve(most_rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantised_slice(tmp_path_factory.mktemp("quantised"), "qwen2")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantised_slice(tmp_path_factory.mktemp("mixture"), "qwen3moe")


def quantised_slice(folder: Path, architecture: Architecture) -> Path:
    """A slice of a tiny model in Q4_K_M; its rows are whole blocks of 256."""
    whole = write_tiny_model(folder / "whole.gguf", architecture, num_layers=NUM_LAYERS, n_embd=512)
    model = quantised(whole, folder / "tiny.gguf", llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M)
    cut_slice(model, LAYERS, folder / "slice.gguf")
    cut_embedding(model, folder / "embedding.gguf")
    return folder


SWITCHED_OFF_AFTER_THE_TRIAL = """
import numpy as np
from gguf import GGMLQuantizationType as Kind
from shoal.engine.invariance import switch_tiling_off
from shoal.engine.llama_runtime import llama_runtime
from shoal.engine.row_kernels_check import _product, _random_matrix, _WIDTH

runtime = llama_runtime()
print("served" if runtime.row_kernels else "unserved")
switch_tiling_off(runtime)
runtime.row_kernels.serve(0)
generator = np.random.default_rng(3)
matrix = _random_matrix(Kind.Q4_K, generator)
rows = generator.standard_normal((64, _WIDTH)).astype(np.float32)
singly = np.concatenate([_product(Kind.Q4_K, matrix, rows[at : at + 1]) for at in range(64)])
print("untiled" if _product(Kind.Q4_K, matrix, rows).tobytes() == singly.tobytes() else "tiled")
"""


class Idle(RowKernels):
    """Never asked: as where llama.cpp was linked in another way."""

    def __init__(self) -> None:
        self.most_rows = 0

    @property
    def num_products(self) -> int:
        return 0

    def serve(self, most_rows: int) -> None:
        pass

    def tile(self, may_tile: bool) -> None:
        pass


def test_products_of_one_to_nine_rows_have_llama_cpps_bits(kernels: RowKernels) -> None:
    assert agree_with_llama(kernels)


def test_kernels_that_llama_cpp_does_not_ask_are_found_out() -> None:
    assert not agree_with_llama(Idle())


def test_wrong_bits_are_found_out(kernels: RowKernels) -> None:
    functions = llama_cpp._lib

    class WithAnotherQuantiser:
        ggml_compute_forward_mul_mat_tiled = functions.ggml_compute_forward_mul_mat_tiled
        ggml_compute_forward_mul_mat_id_tiled = functions.ggml_compute_forward_mul_mat_id_tiled
        ggml_tiled_wdata_size = functions.ggml_tiled_wdata_size
        ggml_barrier = functions.ggml_barrier

    setattr(WithAnotherQuantiser, "quantize_row_q8_K", functions.quantize_row_q8_0)  # noqa: B010
    try:
        assert kernels.connect(WithAnotherQuantiser)  # type: ignore[arg-type]
        assert not agree_with_llama(kernels)
    finally:
        kernels.connect(functions)
        kernels.tile(True)
    assert agree_with_llama(kernels)


def test_what_disagrees_does_not_serve_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert tried(Idle()) is None
    assert "row kernels do not give llama.cpp's results" in caplog.text


def test_where_llama_cpp_is_loaded_already_there_are_none() -> None:
    assert load_row_kernels(native) is None


@pytest.mark.parametrize("suits", [False, True])
def test_only_on_a_cpu_that_they_suit_are_they_put_in_front(
    suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In front and unused they would answer llama.cpp that it has no tiled products.
    in_front: list[object] = []
    monkeypatch.setattr(row_kernels, "put_in_front", in_front.append)
    monkeypatch.delitem(sys.modules, "llama_cpp.llama_cpp")
    library = MagicMock()
    library.shoal_kernels_suit_cpu.return_value = suits
    assert (load_row_kernels(library) is not None) == suits
    assert in_front == [library] * suits


def test_trying_them_leaves_open_whether_llama_cpp_may_tile(kernels: RowKernels) -> None:
    # It reads that once, at its first tiled product: a mixture in invariant mode must be able to say no.
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED_OFF_AFTER_THE_TRIAL], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["served", "untiled"], done.stderr


def test_a_library_without_llama_cpps_functions_is_refused(kernels: RowKernels) -> None:
    assert not kernels.connect(ctypes.CDLL(None))


@pytest.mark.parametrize("kind", ["folder", "mixture"])
def test_a_quantised_slice_computes_the_same_rows_with_and_without_them(
    kernels: RowKernels, kind: str, request: pytest.FixtureRequest
) -> None:
    of: Path = request.getfixturevalue(kind)
    assert row_kernels_serve_most(of / "slice.gguf", is_last=False)
    kernels.serve(0)
    without = rows_of_steps(of, repack=False)
    before = kernels.num_products
    kernels.serve(MOST_ROWS)
    assert rows_of_steps(of, repack=False).tobytes() == without.tobytes()
    assert kernels.num_products > before


def test_weights_stay_as_in_the_file_where_row_kernels_serve_them(kernels: RowKernels, folder: Path) -> None:
    kernels.serve(MOST_ROWS)
    as_in_the_file, repacked = products_served(kernels, folder, False), products_served(kernels, folder, True)
    assert products_served(kernels, folder, None) == as_in_the_file
    assert as_in_the_file > repacked


def test_a_file_of_other_kinds_is_llama_cpps(tmp_path: Path, folder: Path) -> None:
    model = write_tiny_model(tmp_path / "floats.gguf", "qwen2", num_layers=NUM_LAYERS)
    cut_slice(model, LAYERS, tmp_path / "slice.gguf")
    assert not row_kernels_serve_most(tmp_path / "slice.gguf", is_last=False)
    assert row_kernels_serve_most(folder / "slice.gguf", is_last=False)


def test_in_invariant_mode_they_leave_tiled_rows_to_llama_cpp(kernels: RowKernels) -> None:
    runtime = LlamaRuntime.__new__(LlamaRuntime)
    runtime.row_kernels = kernels
    runtime.keep_tiled_rows_tiled()
    assert kernels.most_rows == 7


def rows_of_steps(folder: Path, repack: bool | None = None) -> NDArray[np.float32]:
    """What the slice gives for a prompt of three tokens in each of one to seven sequences, then for steps
    of one row each."""
    config = EngineConfig(
        kind="llama",
        slice_path=folder / "slice.gguf",
        embedding_path=folder / "embedding.gguf",
        n_ctx=32,
        cells=32 * NUM_SEQUENCES,
        max_sequences=NUM_SEQUENCES,
        max_batch_tokens=32,
        repack=repack,
    )
    engine = LlamaEngine(config, LAYERS, NUM_LAYERS)
    try:
        steps = [[Chunk(seq, 0, [seq + 1, seq + 20, seq + 40])] for seq in range(NUM_SEQUENCES)]
        steps += [[Chunk(seq, 3, [seq + 60]) for seq in range(NUM_SEQUENCES)]]
        results = [engine.compute(step, None).rows for step in steps]
        return np.concatenate([rows for rows in results if rows is not None])
    finally:
        engine.close()


def products_served(kernels: RowKernels, folder: Path, repack: bool | None) -> int:
    before = kernels.num_products
    rows_of_steps(folder, repack)
    return kernels.num_products - before
