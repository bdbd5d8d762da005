"""A token survives being copied, and a part of one is told from a whole one."""

from __future__ import annotations

import pytest

from shoal.core.errors import ConfigError
from shoal.core.join_token import JoinToken, parse_join_token

TOKEN = JoinToken("h" * 40, "s" * 38 + "$\\")


def test_a_token_is_what_its_text_says() -> None:
    assert parse_join_token(f" {TOKEN.text()}\n") == TOKEN
    assert TOKEN.text().replace("_", "").replace("-", "").isalnum(), "a shell would break it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shoal1_",
        TOKEN.text()[:-1],
        TOKEN.text()[:-4],
        TOKEN.text()[:20] + "A" + TOKEN.text()[21:],
        TOKEN.text() + "AAAA",
        TOKEN.text().removeprefix("shoal1_"),
        TOKEN.text() + "é",
    ],
)
def test_what_is_no_whole_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError, match="no join token") as caught:
        parse_join_token(text)
    assert not text or text not in str(caught.value)


def test_a_secret_key_is_not_shown_in_logs() -> None:
    assert TOKEN.secret_key not in repr(TOKEN)
