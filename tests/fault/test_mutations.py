"""The rules that `make prove-fault-tests` breaks are still in the code, each where it is said to be."""

from __future__ import annotations

import pytest

from tests.fault.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_the_rule_can_be_broken(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
