"""Token rows equal ggml's own, from the whole file and from the table alone."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from shoal.core.errors import InvariantBroken, ModelFileError
from shoal.model.embedding import EmbeddingTable
from shoal.model.slicing import cut_embedding
from tests.support.tiny_models import ARCHITECTURES
from tests.unit.model.conftest import TinyModel


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_are_the_dequantised_table_with_the_architectures_scale(
    tiny_model: TinyModel, architecture: str, weights: str
) -> None:
    path = tiny_model(architecture, weights=weights)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    table = gguf.dequantize(tensor.data, tensor.tensor_type)
    tokens = [299, 0, 7, 7]
    factor = np.float32(8) if architecture == "gemma3" else np.float32(1)
    rows = EmbeddingTable(path).rows(tokens)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, table[tokens] * factor)


def test_the_table_alone_gives_the_same_rows_as_the_whole_file(tmp_path: Path, tiny_model: TinyModel) -> None:
    source = tiny_model("gemma3", weights="Q8_0")
    alone = EmbeddingTable(cut_embedding(source, tmp_path / "embedding.gguf"))
    whole = EmbeddingTable(source)
    assert (alone.n_vocab, alone.n_embd) == (whole.n_vocab, whole.n_embd) == (300, 64)
    np.testing.assert_array_equal(alone.rows(range(300)), whole.rows(range(300)))


def test_rows_are_the_callers_own(tiny_model: TinyModel) -> None:
    table = EmbeddingTable(tiny_model("llama"))
    first = table.rows([5])
    first[:] = 0
    assert table.rows([5]).any()


def test_no_tokens_give_no_rows(tiny_model: TinyModel) -> None:
    assert EmbeddingTable(tiny_model("llama")).rows([]).shape == (0, 64)


@pytest.mark.parametrize("token", [-1, 300, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(tiny_model: TinyModel, token: int) -> None:
    with pytest.raises(InvariantBroken, match="vocabulary of 300"):
        EmbeddingTable(tiny_model("llama")).rows([1, token])


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelFileError):
        EmbeddingTable(tmp_path / "text.gguf")
