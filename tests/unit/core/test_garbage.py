"""Objects that a serving process keeps for good."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shoal.core.garbage import keep_for_good


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_exists_is_left_out_of_collections_and_what_comes_later_is_not() -> None:
    before = [object(), {}]
    keep_for_good()
    after: list[object] = []
    after.append(after)
    tracked = {id(item) for item in gc.get_objects()}
    assert id(before) not in tracked
    assert id(after) in tracked
