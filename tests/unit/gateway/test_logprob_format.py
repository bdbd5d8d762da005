"""Logprobs in OpenAI's shapes, also for bytes that are no text."""

from __future__ import annotations

from shoal.core.sequence import TokenChance, TokenLogprobs
from shoal.gateway.logprob_format import chat_logprobs, legacy_logprobs

HALF = "😀".encode()[:2]
TOKENS = [
    TokenLogprobs(TokenChance(b" a", -0.5), (TokenChance(b" a", -0.5), TokenChance(b"<end>", -1.5, True)), 0),
    TokenLogprobs(TokenChance(HALF, -3.0), (TokenChance(b"b", -0.25),), 2),
]


def test_the_chat_shape_has_token_logprob_bytes_and_alternatives() -> None:
    assert chat_logprobs(TOKENS) == {
        "content": [
            {
                "token": " a",
                "logprob": -0.5,
                "bytes": [32, 97],
                "top_logprobs": [
                    {"token": " a", "logprob": -0.5, "bytes": [32, 97]},
                    {"token": "<end>", "logprob": -1.5, "bytes": None},
                ],
            },
            {
                "token": "\\xf0\\x9f",
                "logprob": -3.0,
                "bytes": [0xF0, 0x9F],
                "top_logprobs": [{"token": "b", "logprob": -0.25, "bytes": [98]}],
            },
        ],
        "refusal": None,
    }


def test_the_legacy_shape_is_four_lists_and_always_has_the_drawn_token() -> None:
    assert legacy_logprobs(TOKENS) == {
        "tokens": [" a", "bytes:\\xf0\\x9f"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{" a": -0.5, "<end>": -1.5}, {"b": -0.25, "bytes:\\xf0\\x9f": -3.0}],
        "text_offset": [0, 2],
    }


def test_of_two_tokens_with_one_text_the_likelier_counts() -> None:
    twin = TokenLogprobs(TokenChance(b"A", -4.0), (TokenChance(b"A", -0.5),), 0)
    assert legacy_logprobs([twin])["top_logprobs"] == [{"A": -0.5}]


def test_no_tokens_are_empty_lists() -> None:
    assert chat_logprobs([])["content"] == []
    assert legacy_logprobs([])["tokens"] == []
