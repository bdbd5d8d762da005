"""Addresses as people type them."""

from __future__ import annotations

import pytest

from shoal.core.errors import ConfigError
from shoal.gateway.listen_address import parse_listen, url_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("127.0.0.1", ("127.0.0.1", 8000)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("localhost:0", ("localhost", 0)),
        ("my-box.lan", ("my-box.lan", 8000)),
        ("my_box.lan.:65535", ("my_box.lan.", 65535)),
        ("[::1]:9000", ("::1", 9000)),
        ("[::1]", ("::1", 8000)),
        ("::1", ("::1", 8000)),
        ("::", ("::", 8000)),
        ("[fe80::1%eth0]:9000", ("fe80::1%eth0", 9000)),
        ("fe80::1%eth0", ("fe80::1%eth0", 8000)),
    ],
)
def test_valid_forms_are_split_into_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host is missing"),
        (":8000", "host is missing"),
        ("8000", "not an IPv4 address"),
        ("256.1.1.1:80", "not an IPv4 address"),
        ("127.0.0.1:", "not a port"),
        ("127.0.0.1:http", "not a port"),
        ("127.0.0.1:65536", "not a port"),
        ("127.0.0.1:" + "9" * 5000, "not a port"),
        ("127.0.0.1:-1", "not a port"),
        ("127.0.0.1:٣", "not a port"),
        ("[::1", "not closed"),
        ("[::1]9000", "colon"),
        ("[hello]:9000", "not an IPv6 address"),
        ("fe80::1::2:80", "brackets"),
        ("http://127.0.0.1:8000", "URL"),
        ("my box:8000", "not a host name"),
        ("-box:8000", "not a host name"),
    ],
)
def test_bad_forms_say_what_is_wrong_and_what_to_write(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_listen(text)
    assert caught.value.next_step is not None
    assert "HOST:PORT" in caught.value.next_step


def test_urls_have_brackets_only_around_ipv6() -> None:
    assert url_of("127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert url_of("::1", 8000) == "http://[::1]:8000"
    assert url_of("fe80::1%eth0", 80) == "http://[fe80::1%25eth0]:80"


def test_wildcards_are_shown_as_loopback() -> None:
    assert url_of("0.0.0.0", 8000) == "http://127.0.0.1:8000"
    assert url_of("::", 8000) == "http://[::1]:8000"
