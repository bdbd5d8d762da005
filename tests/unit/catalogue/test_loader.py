"""What a catalogue file must say, and how it is told when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.catalogue.failure import LemonMixture, Weibull
from shoal.catalogue.loader import Catalogue, load_catalogue
from shoal.core.errors import ConfigError

MACHINE = """
[machine.mybox]
title = "my box"
class = "cpu"
link = "gigabit"
source = "measured by me"
memory = "16 GiB"
memory_bandwidth = "40 GB/s"
marketed_compute = "1 TFLOPS"
usable_compute = "1 TFLOPS"
power = "60 W"
"""


def load_with(tmp_path: Path, text: str) -> Catalogue:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_catalogue([path])


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_with(tmp_path, text)
    return str(caught.value)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def test_every_value_has_a_source_or_says_that_it_is_unverified(catalogue: Catalogue) -> None:
    entries = [*catalogue.machines.values(), *catalogue.models.values(), *catalogue.links.values()]
    entries += [*catalogue.failures.values(), *catalogue.quantisations.values()]
    for entry in entries:
        assert entry.provenance, entry.name
        for field, origin in entry.provenance.items():
            assert origin.source or origin.is_unverified, (entry.name, field)


def test_the_machines_that_people_ask_about_are_there(catalogue: Catalogue) -> None:
    for name in (
        *("ps3", "rtx-3060", "rtx-4060", "rtx-4060-laptop", "rtx-4090", "rtx-5070", "rtx-5090"),
        *("v100-16", "v100-32", "a100", "h100", "h200", "m4-max-64", "m3-ultra-512", "n100"),
        *("raspberry-pi-5", "desktop-ddr4", "desktop-ddr5"),
    ):
        assert catalogue.machine(name).memory_bytes > 0


@pytest.mark.parametrize(
    "name", ["PS3", "ps3", "RTX-5090", "rtx5090", "RTX 5090", "rtx_5090", "PlayStation3"]
)
def test_names_are_found_whatever_the_case_and_the_dashes(catalogue: Catalogue, name: str) -> None:
    assert catalogue.machine(name).name in {"ps3", "rtx-5090"}


@pytest.mark.parametrize(
    ("name", "near"), [("PS33", "ps3"), ("rtx-5099", "rtx-5090"), ("rasberry-pi", "raspberry-pi-5")]
)
def test_an_unknown_machine_is_answered_with_the_nearest(catalogue: Catalogue, name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near):
        catalogue.machine(name)


def test_an_unknown_model_is_answered_with_the_nearest(catalogue: Catalogue) -> None:
    with pytest.raises(ConfigError, match="kimi-k3"):
        catalogue.model("kimi-k33")


def test_a_user_adds_a_machine_or_replaces_one(tmp_path: Path) -> None:
    own = load_with(
        tmp_path,
        MACHINE + '[machine.ps3-modded]\nlike = "ps3"\ntitle = "x"\nmemory = "1 GiB"\nunverified = true\n',
    )
    assert own.machine("mybox").usable_memory_bytes == 14 * 2**30
    modded, original = own.machine("ps3-modded"), own.machine("ps3")
    assert modded.memory_bytes == 2**30
    assert modded.memory_bytes_per_s == original.memory_bytes_per_s
    assert modded.provenance["memory"].is_unverified
    assert modded.provenance["memory_bandwidth"] == original.provenance["memory_bandwidth"]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"16 GiB"', '"-16 GiB"', ["memory of machine.mybox", "mine.toml, line 7", "0 or more"]),
        ('"16 GiB"', "16", ["memory of machine.mybox", "line 7", "without a unit", "GiB"]),
        ('"16 GiB"', '"16"', ["without a unit"]),
        ('"16 GiB"', '"16 GB/s"', ["measures bytes per s, not bytes"]),
        ('"16 GiB"', '"0 GiB"', ["memory of machine.mybox", "must be more than 0"]),
        ('"16 GiB"', '"1 GiB"', ["usable_memory of machine.mybox", "-1073741824"]),
        ("memory =", "memroy =", ["memory of machine.mybox", "is missing"]),
        ("power =", 'colour = "red"\npower =', ["colour of machine.mybox", "line 11", "no field"]),
        ("power =", 'idle_powr = "3 W"\npower =', ["idle_powr", "did you mean idle_power"]),
        ('"cpu"', '"cpuu"', ["class of machine.mybox", "did you mean cpu"]),
        ('"gigabit"', '"gigabyte"', ["link of machine.mybox", "did you mean gigabit"]),
        ('"measured by me"', '"AICC"', ["no known source", "did you mean AIC"]),
        ('source = "measured by me"\n', "", ["has no source", "unverified = true"]),
        ('source = "measured by me"\n', "unverified = false\n", ["needs a source"]),
        ('"60 W"', '{ value = "60 W", sorce = "me too" }', ["power of machine.mybox", "beside it only"]),
        ("[machine.mybox]", "[machin.mybox]", ["[machin]", "did you mean machine"]),
        ("[machine.mybox]", "[machine.mybox", ["mine.toml", "not TOML", "line 2"]),
    ],
)
def test_a_fault_is_named_with_file_line_and_field(
    tmp_path: Path, old: str, new: str, parts: list[str]
) -> None:
    assert old in MACHINE
    message = refusal(tmp_path, MACHINE.replace(old, new))
    for part in parts:
        assert part in message, message


MODEL = """
[model.mine]
title = "mine"
source = "made up by me"
hidden = 64
vocabulary = 100
context = 128
mixers = "2x full"
feed_forwards = "2x dense"
[model.mine.mixer.full]
kind = "attention"
heads = 4
kv_heads = 2
head_dim = 16
[model.mine.feed_forward.dense]
kind = "dense"
inner = 128
"""


def test_a_user_adds_a_model(tmp_path: Path) -> None:
    assert load_with(tmp_path, MODEL).model("mine").num_layers == 2


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"2x full"', '"3x full"', ["feed_forwards", "names 2 layers, but mixers 3"]),
        ('"2x full"', '"2x fall"', ["mixers of model.mine", "did you mean full"]),
        ('"2x full"', '"2x (full"', ["mixers of model.mine", "cannot be read"]),
        ('"2x full"', '"99999x full"', ["more than 10000 layers"]),
        (
            'kind = "attention"',
            'kind = "atention"',
            ["kind of model.mine.mixer.full", "did you mean attention"],
        ),
        ("heads = 4", "heads = 0", ["heads of model.mine.mixer.full", "line 12", "1 or more"]),
        ("heads = 4", "heads = 4.5", ["whole number"]),
        ("inner = 128", "inner = 128\ninnner = 3", ["innner", "no field"]),
    ],
)
def test_a_fault_in_a_model_is_named(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    message = refusal(tmp_path, MODEL.replace(old, new, 1))
    for part in parts:
        assert part in message, message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_catalogue([tmp_path / "absent.toml"])


def test_churn_distributions_have_their_published_moments(catalogue: Catalogue) -> None:
    minutes = {"p2p-debian": (16, 163, 381), "p2p-redhat": (7, 119, 248), "volunteer": (23, 64, 172)}
    for name, (median, mean, p90) in minutes.items():
        uptime = catalogue.failure(name).uptime
        assert isinstance(uptime, Weibull)
        assert round(uptime.median_s / 60) == median
        assert round(uptime.mean_s / 60) == pytest.approx(mean, abs=1)
        assert round(uptime.quantile_s(0.9) / 60) == p90


def test_the_h100_failure_rate_is_the_published_run(catalogue: Catalogue) -> None:
    mean_s = catalogue.failure("datacentre-gpu").uptime.mean_s
    assert mean_s / 3600 == pytest.approx(16_384 * 54 * 24 / 419, rel=1e-4)
    assert mean_s / 16_384 / 3600 == pytest.approx(3.09, abs=0.005)


def test_lemons_fail_more_often_than_their_mean_says(catalogue: Catalogue) -> None:
    mixture = catalogue.failure("consumer-pc").uptime
    assert isinstance(mixture, LemonMixture)
    assert mixture.failures_per_s > 1 / mixture.mean_s
    assert mixture.survival(0) == 1


def test_volunteers_are_there_as_long_as_was_measured(catalogue: Catalogue) -> None:
    model = catalogue.failure("volunteer")
    assert model.availability == 0.81
    up = model.uptime.mean_s
    assert up / (up + model.repair.mean_s) == pytest.approx(0.81, abs=0.005)
