"""The watch asks only about what is wanted, in C and, where that is missing, in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.config import EngineConfig
from shoal.core.specs import LayerRange
from shoal.engine import node_watch
from shoal.engine.interface import Chunk
from shoal.engine.llama_engine import LlamaEngine
from shoal.engine.llama_library import native
from shoal.engine.node_watch import NodeWatch
from shoal.model.slicing import cut_embedding, cut_slice
from tests.support.tiny_models import write_tiny_model

ASKS, TELLS = True, False


@pytest.fixture(params=["C", "Python"])
def in_c_and_in_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native is not None, "it is compiled when Shoal is installed"
    if request.param == "Python":
        monkeypatch.setattr(node_watch, "native", None)


class Judged:
    """A watch, with what its judge was called with. Wanted are even nodes."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []
        self.watch = NodeWatch(self._judge)

    def _judge(self, node: int, is_question: bool) -> bool:
        self.calls.append((node, is_question))
        return node % 2 == 0

    def call(self, node: int, is_question: bool) -> bool:
        answer: bool = self.watch.callback(node, is_question, self.watch.user_data)
        return answer


@pytest.mark.usefixtures("in_c_and_in_python")
def test_while_it_searches_every_node_is_judged() -> None:
    judged = Judged()
    assert [judged.call(node, ASKS) for node in (1, 2, 3)] == [False, True, False]
    assert judged.calls == [(1, ASKS), (2, ASKS), (3, ASKS)]


@pytest.mark.usefixtures("in_c_and_in_python")
def test_only_wanted_nodes_are_judged_and_all_that_were_computed() -> None:
    judged = Judged()
    judged.watch.want([4, 5])
    assert [judged.call(node, ASKS) for node in (2, 4, 5)] == [False, True, False]
    assert judged.call(6, TELLS)
    assert judged.calls == [(4, ASKS), (5, ASKS), (6, TELLS)]
    judged.watch.want([])
    assert not judged.call(4, ASKS)
    judged.watch.search()
    assert judged.call(8, ASKS)


@pytest.mark.usefixtures("in_c_and_in_python")
def test_progress_moves_with_every_node() -> None:
    judged = Judged()
    judged.watch.want([4])
    for node in (1, 2, 4):
        judged.call(node, ASKS)
    judged.call(4, TELLS)
    assert judged.watch.progress == 4


def test_a_slice_gives_the_same_rows_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "qwen2", num_layers=4)
    layers = LayerRange(0, 3)
    slice_path = cut_slice(model, layers, tmp_path / "slice.gguf")
    embedding_path = cut_embedding(model, tmp_path / "embedding.gguf")
    config = EngineConfig("llama", slice_path, embedding_path, n_ctx=64, cells=64, max_sequences=2)

    def rows() -> bytes:
        engine = LlamaEngine(config, layers, 4)
        try:
            # A prompt, which awaits every layer; answers, which do not; and a prompt again.
            steps = [[Chunk(0, 0, list(range(1, 21)))], [Chunk(0, 20, [7])], [Chunk(0, 21, [9])]]
            steps += [[Chunk(1, 0, list(range(30, 42)))]]
            results = [engine.compute(step, None).rows for step in steps]
            return np.concatenate([each for each in results if each is not None]).tobytes()
        finally:
            engine.close()

    in_c = rows()
    monkeypatch.setattr(node_watch, "native", None)
    assert rows() == in_c
