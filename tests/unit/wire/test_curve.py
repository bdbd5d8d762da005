"""Keys, and who may come in."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from shoal.wire.curve import AllowList, SecureContext, poll_ms


def test_only_listed_keys_are_allowed_and_the_list_is_replaced_as_a_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    allowed = AllowList(["one"])
    assert allowed.callback("*", b"one")
    allowed.replace(["two"])
    with caplog.at_level(logging.WARNING):
        assert not allowed.callback("*", b"one")
    assert "not in the cluster's allow-list" in caplog.text
    assert allowed.callback("*", b"two")


def test_nobody_is_allowed_before_somebody_is_listed() -> None:
    assert not AllowList().callback("*", b"one")


def test_every_process_has_a_key_of_its_own(secure: Callable[[], SecureContext]) -> None:
    first, second = secure(), secure()
    assert first.public_key != second.public_key
    assert len(first.public_key) == 40


def test_a_context_ends_when_its_sockets_are_closed() -> None:
    context = SecureContext()
    context.close()
    assert context.context.closed


def test_a_wait_is_never_rounded_down_to_none() -> None:
    assert [poll_ms(seconds) for seconds in (-1.0, 0.0, 0.0004, 0.0991, 2.0)] == [0, 0, 1, 100, 2000]
