"""From the flags of `shoal serve` to slices on nodes, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.control import start_plan
from shoal.control.start_plan import ServeConfig, StartPhase, make_start_plan
from shoal.core.errors import ConfigError, IllegalCut, InsufficientMemory, ModelFileError
from tests.support.tiny_models import write_tiny_model


def ignore(phase: StartPhase, num_done: int, num_total: int) -> None:
    pass


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", num_layers=6, n_ctx=1000)
    return ServeConfig(model=str(path), home=tmp_path, state_root=tmp_path)


def test_three_nodes_share_the_layers_and_the_context_is_what_the_model_knows(config: ServeConfig) -> None:
    plan = make_start_plan(config, ignore)
    assert plan.model_id == "tiny"
    assert plan.ranges == ((0, 2), (2, 4), (4, 6))
    assert plan.nodes == ("local-0", "local-1", "local-2")
    assert plan.n_ctx == 1000
    assert plan.cells >= plan.n_ctx
    assert plan.threads >= 1


def test_cuts_decide_how_many_nodes_there_are(config: ServeConfig) -> None:
    assert make_start_plan(replace(config, cuts=(1,)), ignore).ranges == ((0, 1), (1, 6))


def test_cuts_and_nodes_that_disagree_are_refused(config: ServeConfig) -> None:
    with pytest.raises(ConfigError, match="makes 2 slices, but --nodes says 3"):
        make_start_plan(replace(config, cuts=(1,), num_nodes=3), ignore)


def test_a_cut_beyond_the_last_layer_is_refused(config: ServeConfig) -> None:
    with pytest.raises(IllegalCut, match="Legal cuts are 1 to 5"):
        make_start_plan(replace(config, cuts=(6,)), ignore)


def test_a_context_beyond_the_trained_one_is_refused_with_the_limit(config: ServeConfig) -> None:
    with pytest.raises(ConfigError, match="Use --ctx 1000 or less"):
        make_start_plan(replace(config, n_ctx=1001), ignore)


def test_a_missing_file_is_refused(config: ServeConfig) -> None:
    with pytest.raises(ModelFileError, match="no model file"):
        make_start_plan(replace(config, model=config.model + "x.gguf"), ignore)


def test_too_little_memory_is_refused_with_node_and_numbers(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_plan, "usable_memory_bytes", lambda: 700 * 2**20)
    with pytest.raises(InsufficientMemory, match=r"Node local-2 cannot hold layers \[4, 6\): needs \d+ MiB"):
        make_start_plan(config, ignore)
