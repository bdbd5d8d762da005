"""What `shoal serve` accepts on its command line."""

from __future__ import annotations

import pytest

from shoal.commands.serve import check_reach, is_loopback, parse_cuts
from shoal.core.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST."])
def test_loopback_addresses_need_no_flag(host: str) -> None:
    assert is_loopback(host)
    check_reach(host, 8000, allow_remote=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan", "localhost.evil.example"])
def test_an_address_that_others_reach_is_refused_unless_allowed(host: str) -> None:
    with pytest.raises(ConfigError, match=r"no API keys yet.*--allow-remote"):
        check_reach(host, 8000, allow_remote=False)
    check_reach(host, 8000, allow_remote=True)


def test_cuts_are_numbers_with_commas() -> None:
    assert parse_cuts("9, 18") == (9, 18)


@pytest.mark.parametrize("text", ["", "9,", "a", "9;18", "-1", "1.5", "²"])
def test_other_cuts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="--cuts 9,18"):
        parse_cuts(text)
