"""From the flags of `shoal serve` to slices on nodes, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.control import start_plan
from shoal.control.start_plan import ServeConfig, StartPhase, make_start_plan
from shoal.core.errors import ConfigError, IllegalCut, InsufficientMemory, ModelFileError
from shoal.core.specs import LayerRange
from tests.support import tiny_models
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


def test_invariant_mode_gives_every_sequence_a_whole_context(config: ServeConfig) -> None:
    default = make_start_plan(config, ignore)
    assert (default.invariant, default.max_sequences, default.cells) == (False, 16, 16384)
    plan = make_start_plan(replace(config, invariant=True), ignore)
    assert (plan.invariant, plan.max_sequences, plan.cells) == (True, 16, 16 * 1000)


@pytest.mark.parametrize(
    ("n_ctx", "max_sequences"), [(1, 16), (2048, 16), (4096, 8), (6000, 5), (16384, 2), (131072, 2)]
)
def test_invariant_mode_has_as_many_sequences_as_default_modes_memory_holds(
    n_ctx: int, max_sequences: int, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", num_layers=6, n_ctx=131072)
    config = ServeConfig(str(path), tmp_path, tmp_path, n_ctx=n_ctx, invariant=True, engine="digest")
    plan = make_start_plan(config, ignore)
    assert (plan.max_sequences, plan.cells) == (max_sequences, max_sequences * n_ctx)


def test_the_memory_that_invariant_mode_needs_counts_its_own_caches(config: ServeConfig) -> None:
    spec = make_start_plan(config, ignore).spec
    f16_bytes = spec.slice_kv_bytes_per_token(LayerRange(0, 6))
    need = start_plan.cache_need(1000, 16 * 1000, 16, 2**29, invariant=True)
    # 1,001 cells of a sequence are rounded up to 1,024; a Q8_0 block of 32 values takes 34 bytes.
    assert need.cells * need.bytes_per_f16_byte * f16_bytes == 16 * 1024 * f16_bytes / 64 * 34


def test_a_journal_without_room_for_one_request_is_refused(config: ServeConfig) -> None:
    one_mib = make_start_plan(replace(config, journal_bytes=2**20), ignore)
    assert one_mib.journal_bytes == one_mib.cache_need.journal_bytes == 2**20
    with pytest.raises(ConfigError, match="has no room for one request") as caught:
        make_start_plan(replace(config, journal_bytes=2**10), ignore)
    assert "--journal-mib 1 " in str(caught.value.next_step)


def test_a_model_whose_heads_fit_no_q8_0_blocks_is_refused_in_invariant_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_models, "HEAD_DIM", 48)
    path = write_tiny_model(tmp_path / "tiny.gguf", "qwen3", num_layers=6)
    config = ServeConfig(str(path), tmp_path, tmp_path)
    make_start_plan(config, ignore)
    with pytest.raises(ConfigError, match="48 values wide"):
        make_start_plan(replace(config, invariant=True), ignore)


def test_slices_that_wait_for_machines_come_after_those_of_local_nodes(config: ServeConfig) -> None:
    config = replace(config, join_listen=("10.0.0.1", 8001), num_nodes=1, wait_for=2)
    plan = make_start_plan(config, ignore)
    assert plan.local_ranges == ((0, 2),)
    assert plan.awaiting == ((2, 4), (4, 6))
    assert plan.nodes == ("local-0",)


def test_a_head_may_carry_nothing_itself(config: ServeConfig) -> None:
    config = replace(config, join_listen=("10.0.0.1", 8001), num_nodes=0, wait_for=1)
    plan = make_start_plan(config, ignore)
    assert (plan.local_ranges, plan.awaiting, plan.nodes) == ((), ((0, 6),), ())


def test_one_local_node_is_enough_where_others_may_join(config: ServeConfig) -> None:
    assert make_start_plan(replace(config, join_listen=("10.0.0.1", 8001)), ignore).nodes == ("local-0",)


def test_cuts_count_the_slices_of_machines_that_join(config: ServeConfig) -> None:
    config = replace(config, join_listen=("10.0.0.1", 8001), cuts=(1, 3), wait_for=1)
    assert make_start_plan(config, ignore).local_ranges == ((0, 1), (1, 3))
    with pytest.raises(ConfigError, match=r"--nodes says 3 and --wait-for 1\. .* use --nodes 2"):
        make_start_plan(replace(config, num_nodes=3), ignore)


def test_waiting_where_nobody_can_join_is_refused(config: ServeConfig) -> None:
    with pytest.raises(ConfigError, match="Add --join-listen"):
        make_start_plan(replace(config, wait_for=1), ignore)


def test_a_cluster_of_no_nodes_is_refused(config: ServeConfig) -> None:
    with pytest.raises(ConfigError, match="no node to serve with"):
        make_start_plan(replace(config, num_nodes=0), ignore)
