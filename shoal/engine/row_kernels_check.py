"""Trying the row kernels before they serve: their products must have llama.cpp's bits.

The kernels read llama.cpp's structures as the pinned version lays them out, and take its place by the
order of loading. Neither is promised by llama.cpp, so both are tried in each process: some milliseconds.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from shoal.engine.llama_library import ggml_function
from shoal.engine.row_kernels import SERVED_KINDS, RowKernels

_WIDTH: Final = 512
_HEIGHT: Final = 33  # odd: the last row has no partner
_MOST_ROWS: Final = 9  # a tile and a rest
_ROOM: Final = 16 * 2**20
_HALVES: Final = {Kind.Q4_K: (0, 2), Kind.Q6_K: (208,)}  # where a block keeps its factors, as float16


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_init = ggml_function("ggml_init", _POINTER, _InitParams)
_free = ggml_function("ggml_free", None, _POINTER)
_new_tensor = {
    num_dims: ggml_function(
        f"ggml_new_tensor_{num_dims}d", _POINTER, _POINTER, ctypes.c_int, *[_NUMBER] * num_dims
    )
    for num_dims in (2, 3)
}
_get_data = ggml_function("ggml_get_data", _POINTER, _POINTER)
_mul_mat = ggml_function("ggml_mul_mat", _POINTER, _POINTER, _POINTER, _POINTER)
_mul_mat_id = ggml_function("ggml_mul_mat_id", _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)
_new_graph = ggml_function("ggml_new_graph", _POINTER, _POINTER)
_build_forward_expand = ggml_function("ggml_build_forward_expand", None, _POINTER, _POINTER)
_graph_compute = ggml_function("ggml_graph_compute_with_ctx", ctypes.c_int, _POINTER, _POINTER, ctypes.c_int)


def agree_with_llama(kernels: RowKernels) -> bool:
    """Whether products, and products of experts, have the bits that llama.cpp's dot products give.
    Serves nothing afterwards."""
    try:
        kinds = sorted(SERVED_KINDS)
        return all(_products_agree(kernels, kind) and _experts_agree(kernels, kind) for kind in kinds)
    finally:
        kernels.serve(0)


def _products_agree(kernels: RowKernels, kind: Kind) -> bool:
    """Of one to nine rows."""
    generator = np.random.default_rng(1)
    matrix = _random_matrix(kind, generator)
    rows = generator.standard_normal((_MOST_ROWS, _WIDTH)).astype(np.float32)
    kernels.serve(0)
    # One row at a time: llama.cpp's choice among kernels is by the number of rows.
    expected = np.concatenate([_product(kind, matrix, rows[at : at + 1]) for at in range(_MOST_ROWS)])
    kernels.serve(_MOST_ROWS)
    for num_rows in range(1, _MOST_ROWS + 1):
        before = kernels.num_products
        actual = _product(kind, matrix, rows[:num_rows])
        is_served = kernels.num_products == before + 1
        if not is_served or actual.tobytes() != expected[:num_rows].tobytes():
            return False
    return True


def _experts_agree(kernels: RowKernels, kind: Kind) -> bool:
    """Two of three experts for each of four rows: each gets at most four, which llama.cpp does not tile."""
    generator = np.random.default_rng(2)
    experts = np.stack([_random_matrix(kind, generator) for _ in range(3)])
    choices = np.array([[0, 1], [1, 2], [2, 0], [1, 0]], np.int32)
    for rows_per_choice in (1, 2):  # one row for both of its experts, or one for each
        rows = generator.standard_normal((4, rows_per_choice, _WIDTH)).astype(np.float32)
        kernels.serve(0)
        expected = _product(kind, experts, rows, choices)
        kernels.serve(_MOST_ROWS)
        before = kernels.num_products
        actual = _product(kind, experts, rows, choices)
        if kernels.num_products != before + 3 or actual.tobytes() != expected.tobytes():
            return False
    return True


def _random_matrix(kind: Kind, generator: np.random.Generator) -> NDArray[np.uint8]:
    """[_HEIGHT, bytes of a row]: any bits are weights, but for the factors, which must be numbers."""
    num_values, num_bytes = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (_HEIGHT, _WIDTH // num_values, num_bytes), np.uint8)
    for at in _HALVES[kind]:
        factors = generator.uniform(0.01, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = factors[..., None].view(np.uint8)
    return blocks.reshape(_HEIGHT, -1)


def _product(
    kind: Kind, matrix: NDArray[np.uint8], rows: NDArray[np.float32], choices: NDArray[np.int32] | None = None
) -> NDArray[np.float32]:
    """[..., _HEIGHT], by a graph of one product, on two threads. matrix: one, or one of each expert; then
    `choices` are, for each row, those that it is multiplied with."""
    context = _init(_InitParams(_ROOM, None, False))

    def tensor(of: Kind | int, values: NDArray[Any], *dims: int) -> Any:
        made = _new_tensor[len(dims)](context, int(of), *dims)
        ctypes.memmove(_get_data(made), values.ctypes.data, values.nbytes)
        return made

    try:
        # ggml names the innermost dimension first.
        weights = tensor(kind, matrix, _WIDTH, _HEIGHT, *matrix.shape[:-2])
        inputs = tensor(Kind.F32, rows, _WIDTH, *rows.shape[-2::-1])
        if choices is None:
            shape = (len(rows), _HEIGHT)
            product = _mul_mat(context, weights, inputs)
        else:
            shape = (*choices.shape, _HEIGHT)
            chosen = tensor(Kind.I32, choices, *choices.shape[::-1])
            product = _mul_mat_id(context, weights, inputs, chosen)
        graph = _new_graph(context)
        _build_forward_expand(graph, product)
        _graph_compute(context, graph, 2)
        result = np.empty(shape, np.float32)
        ctypes.memmove(result.ctypes.data, _get_data(product), result.nbytes)
        return result
    finally:
        _free(context)
