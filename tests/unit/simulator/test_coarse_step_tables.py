"""What a step does to a cell: the chances are those of single answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.simulator.cell_plan import deal_machines
from shoal.simulator.coarse_step_tables import StepTables
from shoal.simulator.coarse_tables import kinds_of_cells
from shoal.simulator.scenario import Scenario
from tests.unit.simulator.toy_scenarios import scenario

STEP_S = 0.3
MEAN_TOKENS = 60.0


@pytest.fixture(scope="module")
def steps() -> StepTables:
    return tables(scenario())


def tables(wanted: Scenario, mean_tokens: float = MEAN_TOKENS) -> StepTables:
    return StepTables(kinds_of_cells(wanted, deal_machines(wanted))[0], STEP_S, mean_tokens)


def state_of(steps: StepTables, prompts: int, answers: int, doubling: int = 0) -> int:
    start = steps.state(np.array([0]), np.array([doubling]))[0]
    return int(start) + prompts * steps.prompt_step + answers


@pytest.mark.parametrize(("prompts", "answers"), [(0, 1), (0, 8), (2, 5)])
def test_so_many_answers_end_as_their_lengths_without_memory_say(
    steps: StepTables, prompts: int, answers: int
) -> None:
    state = state_of(steps, prompts, answers)
    chance = 1 - math.exp(-steps.tokens_each[state] / (MEAN_TOKENS - 1))
    ended = steps.num_ended(np.full(200_000, state), np.random.default_rng(1).random(200_000))
    assert 0 <= ended.min() <= ended.max() <= answers
    assert ended.mean() == pytest.approx(answers * chance, rel=0.03)
    assert ended.var() == pytest.approx(answers * chance * (1 - chance), rel=0.03)
    assert steps.made[state] == pytest.approx(answers * (MEAN_TOKENS - 1) * chance)


def test_an_empty_cell_does_nothing(steps: StepTables) -> None:
    state = state_of(steps, 0, 0)
    assert steps.started[state] == steps.tokens_each[state] == steps.made[state] == 0
    assert steps.busy_s[state] == steps.link_s[state] == 0
    assert not steps.num_ended(np.full(100, state), np.linspace(0, 0.999, 100)).any()


def test_answers_alone_make_a_step_over_their_time_tokens(steps: StepTables) -> None:
    state = state_of(steps, 0, 3)
    assert steps.tokens_each[state] == pytest.approx(STEP_S / steps.calm_s[state])


def test_prompts_slow_answers_for_as_long_as_they_are_there(steps: StepTables) -> None:
    calm, beside = state_of(steps, 0, 8), state_of(steps, 6, 2)
    assert 0 < steps.tokens_each[beside] < steps.tokens_each[state_of(steps, 0, 2)]
    assert steps.started[calm] == 0 < steps.started[beside]


def test_stages_that_share_a_machine_are_slower(steps: StepTables) -> None:
    assert steps.tokens_each[state_of(steps, 0, 8, 1)] < steps.tokens_each[state_of(steps, 0, 8, 0)]


def test_answers_of_one_token_end_where_they_start() -> None:
    steps = tables(scenario(), mean_tokens=1.0)
    assert (steps.end_fresh == 1).all()
    assert steps.made.sum() == 0


def test_an_answer_that_has_just_started_has_half_of_the_step(steps: StepTables) -> None:
    state = state_of(steps, 1, 3)
    expected = 1 - math.exp(-steps.tokens_each[state] / 2 / (MEAN_TOKENS - 1))
    assert steps.end_fresh[state, 1] == pytest.approx(expected)
