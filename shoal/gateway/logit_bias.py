"""`logit_bias`: token ids as JSON has them, in strings, with what is added to their logits."""

from __future__ import annotations

from shoal.core.errors import BadRequest
from shoal.gateway.body_fields import shown

MAX_BIAS = 100
"""OpenAI's limit, either way."""

MAX_BIASED_TOKENS = 1024
"""They travel to every stage and are added for every token."""


def read_logit_bias(raw: object) -> tuple[tuple[int, float], ...]:
    """(token, bias) for each token whose bias is not 0, in order of tokens.

    Whether they are in the vocabulary is not known here. Raises BadRequest.
    """
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        raise _bad("must be an object of token ids and numbers")
    if len(raw) > MAX_BIASED_TOKENS:
        raise _bad(f"has {len(raw)} tokens; {MAX_BIASED_TOKENS} is the most")
    read = (_read_one(key, value) for key, value in raw.items())
    return tuple(sorted((token, bias) for token, bias in read if bias != 0))


def _read_one(key: str, value: object) -> tuple[int, float]:
    # One spelling for one token: "07" and "7" would be two wishes about the same.
    is_id = key.isascii() and key.isdecimal() and len(key) <= 12 and str(int(key)) == key
    if not is_id:
        raise _bad(f"has a key that is no token id{shown(key)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(f"of token {key} must be a number")
    if not -MAX_BIAS <= value <= MAX_BIAS:
        raise _bad(f"of token {key} must be from -{MAX_BIAS} to {MAX_BIAS}{shown(value)}")
    return int(key), float(value)


def _bad(why: str) -> BadRequest:
    return BadRequest(
        f"logit_bias {why}.", param="logit_bias", next_step='Send it as {"<token id>": -100 to 100}.'
    )
