"""The join token: one line of text that lets a machine join, and lets it know the head.

It holds the head's public key and a secret key of its own. Who connects with that secret is let in,
and only the process that holds the head's secret key can answer: neither is ever sent. Knows nothing of
where tokens are kept (control/token_file.py).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, field

from shoal.core.errors import ConfigError

PREFIX = "shoal1_"
KEY_LENGTH = 40  # a CURVE key as Z85 text
CHECK_BYTES = 4


@dataclass(frozen=True, slots=True)
class JoinToken:
    """head_key: public. secret_key: what the head knows the public half of. Both as Z85 text."""

    head_key: str
    secret_key: str = field(repr=False)

    def text(self) -> str:
        """As people copy it: no character that a shell or a double click would break."""
        keys = (self.head_key + self.secret_key).encode("ascii")
        return PREFIX + base64.urlsafe_b64encode(keys + _check(keys)).decode("ascii")


def parse_join_token(text: str) -> JoinToken:
    """Raises ConfigError for what is no token, or only a part of one; never repeats the text."""
    body = text.strip()
    if not body.startswith(PREFIX):
        raise _bad(f"it does not begin with {PREFIX}")
    try:
        packed = base64.b64decode(body.removeprefix(PREFIX), altchars=b"-_", validate=True)
        keys, check = packed[:-CHECK_BYTES], packed[-CHECK_BYTES:]
        letters = keys.decode("ascii")
    except (binascii.Error, ValueError):
        raise _bad("a part of it is missing or was changed") from None
    if len(keys) != 2 * KEY_LENGTH or check != _check(keys):
        raise _bad("a part of it is missing or was changed")
    return JoinToken(letters[:KEY_LENGTH], letters[KEY_LENGTH:])


def _check(keys: bytes) -> bytes:
    return zlib.crc32(keys).to_bytes(CHECK_BYTES, "big")


def _bad(why: str) -> ConfigError:
    return ConfigError(
        f"That is no join token: {why}.",
        next_step="Run `shoal token create` on the head and copy the whole line.",
    )
