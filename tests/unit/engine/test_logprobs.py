"""Logprobs: log softmax of the model's own logits, finite, and the same order every time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.core.sequence import BANNED, SamplingParams
from shoal.engine.interface import Draw
from shoal.engine.logprobs import logprobs_of
from shoal.engine.sampling import pick


def test_they_are_the_log_softmax_in_order() -> None:
    logits = np.random.default_rng(5).normal(0, 4, 151_936).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide - (wide.max() + math.log(np.exp(wide - wide.max()).sum()))
    found = logprobs_of(logits, 77, 20)
    assert found.drawn == pytest.approx(expected[77], abs=1e-5)
    order = np.argsort(-expected, kind="stable")[:20]
    assert [token for token, _ in found.top] == order.tolist()
    assert [logprob for _, logprob in found.top] == pytest.approx(expected[order], abs=1e-5)


def test_the_lowest_id_comes_first_on_a_tie() -> None:
    logits = np.zeros(50, np.float32)
    logits[30] = 1
    assert [token for token, _ in logprobs_of(logits, 0, 4).top] == [30, 0, 1, 2]


def test_no_more_than_the_vocabulary_and_none_where_none_is_asked() -> None:
    logits = np.array([0.0, 1.0], np.float32)
    assert len(logprobs_of(logits, 0, 20).top) == 2
    assert logprobs_of(logits, 0, 0).top == ()


def test_all_are_finite_at_the_ends_of_float32() -> None:
    found = logprobs_of(np.array([3.0e38, -3.0e38, 0.0], np.float32), 1, 3)
    assert all(math.isfinite(logprob) for _, logprob in found.top)
    assert math.isfinite(found.drawn)
    assert found.top[0] == (0, 0.0)


def test_they_come_only_where_asked_and_tell_the_model_s_view() -> None:
    logits = np.array([2.0, 1.0, 0.0], np.float32)
    assert pick(logits, Draw(SamplingParams(temperature=0.0), 0, ())).logprobs is None
    plain = pick(logits, Draw(SamplingParams(temperature=0.0, top_logprobs=1), 0, ()))
    assert plain.logprobs is not None
    assert plain.logprobs.top == ((0, plain.logprobs.drawn),)
    # A ban changes which token is drawn, and not how likely the model held any.
    params = SamplingParams(temperature=0.0, top_logprobs=1, logit_bias=((0, BANNED),), presence_penalty=2.0)
    banned = pick(logits, Draw(params, 0, (1,)))
    assert banned.token == 2
    assert banned.logprobs is not None
    assert banned.logprobs.top == plain.logprobs.top
    assert banned.logprobs.drawn == pytest.approx(plain.logprobs.drawn - 2.0)
