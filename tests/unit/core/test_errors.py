"""Errors say what happened, where, why, and what to do."""

from __future__ import annotations

import pytest

from shoal.core import errors
from shoal.core.errors import BadRequest, ConfigError, EngineError, ShoalError


def _all_kinds(kind: type[ShoalError] = ShoalError) -> list[type[ShoalError]]:
    return [kind, *(found for each in kind.__subclasses__() for found in _all_kinds(each))]


def test_the_next_step_stands_behind_the_message() -> None:
    assert str(ShoalError("It broke.", next_step="Mend it.")) == "It broke. Mend it."
    assert str(ShoalError("It broke.")) == "It broke."


def test_every_kind_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in _all_kinds()]
    assert sorted(codes) == sorted(set(codes))
    assert len(codes) > 15


@pytest.mark.parametrize(
    "kind", [errors.Overloaded, errors.NotReady, errors.NodeLost, errors.StageTimeout, EngineError], ids=str
)
def test_what_another_try_may_mend_is_retryable(kind: type[ShoalError]) -> None:
    assert kind.retryable


@pytest.mark.parametrize("kind", [BadRequest, ConfigError, errors.InvariantBroken, errors.Cancelled], ids=str)
def test_what_another_try_cannot_mend_is_not(kind: type[ShoalError]) -> None:
    assert not kind.retryable


def test_a_prompt_that_is_too_long_is_told_with_its_numbers() -> None:
    error = errors.ContextLengthExceeded(prompt_tokens=90, max_tokens=20, n_ctx=100, param="messages")
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert "context is 100 tokens" in error.message
    assert "90 tokens plus max_tokens 20" in error.message


def test_missing_memory_is_told_in_the_units_that_people_read() -> None:
    error = errors.InsufficientMemory(node="box", layers="[0, 4)", need_bytes=3 << 20, usable_bytes=1 << 20)
    assert "Node box cannot hold layers [0, 4): needs 3 MiB, has 1 MiB usable (2 MiB missing)." in str(error)


def test_a_field_may_name_its_own_code() -> None:
    assert BadRequest("No.", param="n", code="empty_array").code == "empty_array"
    assert BadRequest("No.", param="n").code == "invalid_value"


def test_an_unknown_model_is_told_what_is_served() -> None:
    error = errors.ModelNotFound(asked="gpt", served=["a", "b"])
    assert str(error) == "The model 'gpt' is not served here. Served: a, b."
