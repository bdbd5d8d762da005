"""How logprobs look in OpenAI's two shapes.

`token` is text; bytes that make no character are written as `\\xf0\\x9f`, so that no reader takes
them for a replacement character. `bytes` is null for control tokens, which have no text.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.sequence import TokenChance, TokenLogprobs


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, object]:
    """For /v1/chat/completions."""
    return {"content": [_chat_token(token) for token in tokens], "refusal": None}


def legacy_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, object]:
    """For /v1/completions. text_offset: characters from the begin of the choice's text."""
    return {
        "tokens": [_legacy_text(each.token) for each in tokens],
        "token_logprobs": [each.token.logprob for each in tokens],
        "top_logprobs": [_by_text(each) for each in tokens],
        "text_offset": [each.text_offset for each in tokens],
    }


def _chat_token(token: TokenLogprobs) -> dict[str, object]:
    return {**_chat_chance(token.token), "top_logprobs": [_chat_chance(chance) for chance in token.top]}


def _chat_chance(chance: TokenChance) -> dict[str, object]:
    return {
        "token": _text(chance),
        "logprob": chance.logprob,
        "bytes": None if chance.is_control else list(chance.text),
    }


def _by_text(token: TokenLogprobs) -> dict[str, float]:
    """Likeliest first; the drawn token is always there, so that there may be one more than asked.
    Of two tokens with the same text the likelier one counts."""
    chances: dict[str, float] = {}
    for chance in (*token.top, token.token):
        chances.setdefault(_legacy_text(chance), chance.logprob)
    return chances


def _legacy_text(chance: TokenChance) -> str:
    text = _text(chance)
    return text if _is_text(chance.text) else f"bytes:{text}"


def _text(chance: TokenChance) -> str:
    return chance.text.decode("utf-8", "backslashreplace")


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
