"""What `shoal serve` accepts on its command line."""

from __future__ import annotations

import pytest

from shoal.commands.serve import check_reach, is_loopback, parse_cuts, parse_join_listen
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.168.1.5", ("192.168.1.5", 8001)),
        ("192.168.1.5:9000", ("192.168.1.5", 9000)),
        ("[fd00::5]:9000", ("fd00::5", 9000)),
        ("fd00::5", ("fd00::5", 8001)),
    ],
)
def test_machines_join_at_an_address_of_the_network(text: str, expected: tuple[str, int]) -> None:
    assert parse_join_listen(text) == expected


@pytest.mark.parametrize("text", ["0.0.0.0", "[::]:8001", "127.0.0.1", "localhost:8001", "::1"])
def test_an_address_that_others_cannot_connect_to_is_refused_for_joining(text: str) -> None:
    with pytest.raises(ConfigError, match="other machines cannot connect to"):
        parse_join_listen(text)


def test_a_name_that_is_not_known_is_refused_for_joining() -> None:
    with pytest.raises(ConfigError, match=r"the name 'no-such-host\.invalid' is not known here"):
        parse_join_listen("no-such-host.invalid")
