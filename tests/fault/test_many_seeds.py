"""Runs of many seeds miss none, and tell how to replay one that fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fault import test_machine_faults
from tests.fault.many_seeds import Block, blocks_of, run_block


def test_blocks_cover_every_seed_of_each_suite_once() -> None:
    seeds = Counter(
        (block.suite, seed) for block in blocks_of(100, 1234) for seed in range(block.first, block.stop)
    )
    assert set(seeds.values()) == {1}
    assert sorted(seed for suite, seed in seeds if suite == "machine") == list(range(100, 1334))
    assert sorted(seed for suite, seed in seeds if suite == "network") == list(range(100, 346))


def test_a_seed_that_fails_is_told_with_its_replay_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []

    def run_seed(seed: int) -> None:
        ran.append(seed)
        assert seed != 6, "the text differs"

    monkeypatch.setattr(test_machine_faults, "run_seed", run_seed)
    [failure] = run_block(Block("machine", 5, 8))
    assert ran == [5, 6, 7]
    assert "the text differs" in failure.trace
    assert failure.replay.startswith("SHOAL_FAULT_SEED=6 ")
    assert "tests/fault/test_machine_faults.py -k one_seed" in failure.replay
