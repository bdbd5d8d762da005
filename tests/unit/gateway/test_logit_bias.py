"""logit_bias: keys that are token ids, values within OpenAI's range."""

from __future__ import annotations

import pytest

from shoal.core.errors import BadRequest
from shoal.gateway.logit_bias import MAX_BIASED_TOKENS, read_logit_bias


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (None, ()),
        ({}, ()),
        ({"0": -100, "12": 100, "7": 0.5}, ((0, -100.0), (7, 0.5), (12, 100.0))),
        ({"5": 0, "6": 0.0}, ()),
        ({"999999999999": 1}, ((999999999999, 1.0),)),
    ],
)
def test_sound_ones_are_read_in_order_of_tokens(raw: object, read: object) -> None:
    assert read_logit_bias(raw) == read


@pytest.mark.parametrize(
    "raw",
    [
        [],
        "5",
        5,
        *({key: 1} for key in ("abc", "-1", "1.5", "", " 1", "1 ", "+1", "07", "1_0", "٣", "²", "1e2")),
        {"9" * 5000: 1},
        *({"1": value} for value in (101, -100.5, None, "5", True, [], float("inf"), float("nan"), 10**5000)),
        {str(token): 1 for token in range(MAX_BIASED_TOKENS + 1)},
    ],
)
def test_others_are_refused_by_name(raw: object) -> None:
    with pytest.raises(BadRequest) as caught:
        read_logit_bias(raw)
    assert caught.value.param == "logit_bias"
    assert len(str(caught.value)) < 200
