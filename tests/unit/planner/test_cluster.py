"""Machines as they are written on a command line."""

from __future__ import annotations

import pytest

from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.errors import ConfigError
from shoal.planner.cluster import parse_cluster


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.mark.parametrize(
    ("texts", "members"),
    [
        (["100000xPS3"], [("ps3", 100_000)]),
        (["100_000 x ps3"], [("ps3", 100_000)]),
        (["2xRTX-5090,8xn100"], [("rtx-5090", 2), ("n100", 8)]),
        (["2*rtx5090", "n100", "n100"], [("rtx-5090", 2), ("n100", 2)]),
        (["PS3"], [("ps3", 1)]),
    ],
)
def test_kinds_are_counted(catalogue: Catalogue, texts: list[str], members: list[tuple[str, int]]) -> None:
    cluster = parse_cluster(texts, catalogue)
    assert [(kind.name, count) for kind, count in cluster.members] == members
    assert cluster.num_machines == sum(count for _, count in members)


@pytest.mark.parametrize("text", ["0xPS3", "-3xPS3", "2.5xPS3", "1000000000xPS3"])
def test_a_count_must_be_whole_and_sane(catalogue: Catalogue, text: str) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        parse_cluster([text], catalogue)


@pytest.mark.parametrize("texts", [[], [""], [" , "]])
def test_no_machines_are_refused(catalogue: Catalogue, texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="names no machine"):
        parse_cluster(texts, catalogue)


def test_an_unknown_kind_is_answered_with_the_nearest(catalogue: Catalogue) -> None:
    with pytest.raises(ConfigError, match=r"PS5.*ps3"):
        parse_cluster(["3xPS5"], catalogue)


def test_a_price_that_is_not_known_leaves_the_sum_unknown(catalogue: Catalogue) -> None:
    assert parse_cluster(["2xm3-ultra-96"], catalogue).price_usd == 2 * 3999
    assert parse_cluster(["2xrtx-5090,1xh100"], catalogue).price_usd is None
    assert parse_cluster(["2xrtx-5090,1xn100"], catalogue).rent_usd_per_hour is None


def test_a_card_is_counted_with_the_computer_around_it(catalogue: Catalogue) -> None:
    card = catalogue.machine("rtx-5090")
    assert (card.power_w, card.price_usd) == (575 + 70, 1999 + 400)
    assert catalogue.machine("n100").power_w == 25
