"""Hypotheses: reading them strictly, and judging them with the method's error in mind."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.catalogue.loader import load_catalogue
from shoal.core.errors import ConfigError
from shoal.planner.assumptions import default_assumptions
from shoal.planner.hypothesis import Claim, Figures, Hypothesis, Known, Terms, Truth, judge
from shoal.planner.hypothesis_estimate import EstimateMethod
from shoal.planner.hypothesis_file import read_hypotheses

WELL_FORMED = """
[hypothesis.fast]
says = "two boxes answer quickly"
machines = "2xRTX-5090"
model = "llama-70b"
quant = "q4_0"
holds_model = true
token_time = "<= 1 s"
cost_per_million = "<= server"
"""


def read(tmp_path: Path, text: str) -> tuple[Hypothesis, ...]:
    path = tmp_path / "hypothesis.toml"
    path.write_text(text)
    return read_hypotheses(path)


def claiming(*claims: Claim, holds: bool = False) -> Hypothesis:
    return Hypothesis(
        name="x", says="x", machines="1xN100", model="qwen3-8b", quantisation="q4_0", link=None,
        failures="always-on", against="h100", streams=1, context_tokens=100, prompt_tokens=100,
        by="estimate", claims_to_hold=holds, claims=claims,
    )  # fmt: skip


def figures(known: dict[str, Known], *, holds: bool | None = True, server: float | None = None) -> Figures:
    costs = {} if server is None else {"cost_per_million": server}
    return Figures("toy", holds, None if holds else "too small", known, costs)


def test_a_file_states_hypotheses_in_order(tmp_path: Path) -> None:
    (found,) = read(tmp_path, WELL_FORMED)
    assert (found.name, found.by, found.claims_to_hold, found.streams) == ("fast", "estimate", True, 8)
    assert [(claim.measure, claim.limit) for claim in found.claims] == [
        ("token_time", 1.0),
        ("cost_per_million", None),
    ]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"<= 1 s"', '"<= 1"', ["token_time of hypothesis.fast", "line 8", "without a unit"]),
        ('"<= 1 s"', '"<= 1 GB"', ["measures bytes, not seconds"]),
        ('"<= 1 s"', '"<= -1 s"', ["0 or more"]),
        ('"<= 1 s"', '">= 1 s"', ["so that it can fail", "<="]),
        ('"<= 1 s"', '"<= server"', ["not a number with a unit"]),
        ("token_time", "token_tme", ["token_tme", "did you mean token_time"]),
        ("machines =", "machine =", ["machines of hypothesis.fast", "is missing"]),
        ("[hypothesis.fast]", "[hypotheses.fast]", ["[hypotheses]", "did you mean hypothesis"]),
        ("[hypothesis.fast]", "[hypothesis.fast", ["not TOML", "line 2"]),
        (
            'holds_model = true\ntoken_time = "<= 1 s"\ncost_per_million = "<= server"\n',
            "",
            ["claims", "missing"],
        ),
    ],
)
def test_a_fault_is_named_with_file_line_and_field(
    tmp_path: Path, old: str, new: str, parts: list[str]
) -> None:
    assert old in WELL_FORMED
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, WELL_FORMED.replace(old, new))
    for part in ("hypothesis.toml", *parts):
        assert part in str(caught.value)


SIMULATED = """
[hypothesis.fast.simulation]
rate = "2 req/min"
duration = "1 h"
"""


def test_terms_of_a_simulation_are_read_with_their_units(tmp_path: Path) -> None:
    (found,) = read(tmp_path, WELL_FORMED + SIMULATED)
    assert found.terms == Terms(duration_s=3600.0, arrivals_per_s=2 / 60)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"1 h"', "1", ["duration of hypothesis.fast.simulation", "line 13", "without a unit"]),
        ('"1 h"', '"0 s"', ["duration", "must be more"]),
        ("duration", "duraton", ["duraton", "did you mean duration"]),
        ("rate =", "mode = 'rough'\nrate =", ["mode", "fine or coarse"]),
        ("rate =", "polite = '120 %'\nrate =", ["polite", "more than 100 %"]),
        ("[hypothesis.fast.simulation]", "[hypothesis.fast.simulaton]", ["did you mean simulation"]),
    ],
)
def test_a_fault_in_the_terms_is_named(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, WELL_FORMED + SIMULATED.replace(old, new))
    for part in ("hypothesis.toml", *parts):
        assert part in str(caught.value)


def test_a_whole_share_has_the_margin_of_what_is_missing() -> None:
    claim = Claim("availability", 0.99, "a")
    for low, high, truth in (
        (0.995, 0.999, Truth.TRUE),
        (0.98, 0.999, Truth.UNDECIDED),
        (0.9, 0.98, Truth.FALSE),
    ):
        result = judge(claiming(claim), figures({"availability": Known(0.998, low, high, "toy", "why")}))
        assert result.truth is truth
        assert result.claims[0].margin == pytest.approx(5.0)


def test_what_only_a_simulation_has_is_said() -> None:
    result = judge(claiming(Claim("stall_p90", 1.0, "s")), figures({}))
    assert "--by simulation" in result.claims[0].reason


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hypotheses(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="states no hypothesis"):
        read(tmp_path, "")


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        (0.5, Truth.TRUE),
        (0.67, Truth.UNDECIDED),
        (1.0, Truth.UNDECIDED),
        (1.49, Truth.UNDECIDED),
        (1.51, Truth.FALSE),
    ],
)
def test_a_claim_is_decided_only_outside_the_methods_error(value: float, truth: Truth) -> None:
    result = judge(
        claiming(Claim("token_time", 1.0, "t")), figures({"token_time": Known.within(value, 1.5, "toy")})
    )
    assert result.truth is truth
    assert result.claims[0].margin == pytest.approx(1.0 / value)


def test_an_exact_figure_is_always_decided() -> None:
    for value, truth in ((99.0, Truth.TRUE), (101.0, Truth.FALSE)):
        result = judge(
            claiming(Claim("power", 100.0, "p")), figures({"power": Known.within(value, 1.0, "toy")})
        )
        assert result.truth is truth


def test_at_least_claims_turn_the_margin_round() -> None:
    result = judge(
        claiming(Claim("throughput", 10.0, "t")), figures({"throughput": Known.within(40.0, 1.5, "toy")})
    )
    assert result.truth is Truth.TRUE
    assert result.claims[0].margin == 4.0


def test_a_bound_beyond_the_limit_decides_whatever_the_error() -> None:
    known = {"token_time": Known.within(1.2, 10.0, "toy", best=1.1)}
    assert judge(claiming(Claim("token_time", 1.0, "t")), figures(known)).truth is Truth.FALSE


def test_a_figure_that_the_method_lacks_is_undecided() -> None:
    assert judge(claiming(Claim("power", 1.0, "p")), figures({})).truth is Truth.UNDECIDED
    assert judge(claiming(holds=True), figures({}, holds=None)).truth is Truth.UNDECIDED


def test_one_false_claim_outweighs_an_undecided_one() -> None:
    claims = (Claim("power", 1.0, "p"), Claim("token_time", 1.0, "t"), Claim("throughput", 1.0, "r"))
    known = {"token_time": Known.within(9.0, 1.5, "toy"), "throughput": Known.within(9.0, 1.5, "toy")}
    result = judge(claiming(*claims), figures(known))
    assert [claim.truth for claim in result.claims] == [Truth.UNDECIDED, Truth.FALSE, Truth.TRUE]
    assert result.truth is Truth.FALSE


def test_machines_that_do_not_hold_the_model_fail_every_claim() -> None:
    result = judge(
        claiming(Claim("token_time", 9.0, "t"), holds=True),
        figures({"token_time": Known.within(1.0, 1.5, "toy")}, holds=False),
    )
    assert [claim.truth for claim in result.claims] == [Truth.FALSE, Truth.FALSE]
    assert result.claims[0].reason == "too small"


def test_the_servers_figure_is_the_limit_where_it_is_asked_for() -> None:
    claim = Claim("cost_per_million", None, "c")
    known = {"cost_per_million": Known.within(1.0, 2.0, "toy")}
    assert judge(claiming(claim), figures(known, server=3.0)).truth is Truth.TRUE
    assert judge(claiming(claim), figures(known, server=0.4)).truth is Truth.FALSE


@pytest.mark.parametrize(
    ("machines", "model", "quantisation", "claims", "truth"),
    [
        ("2xrtx-5090", "llama-70b", "q4_0", [("token_time", 0.1)], Truth.TRUE),
        ("2xrtx-5090", "llama-70b", "q4_0", [("token_time", 0.01)], Truth.FALSE),
        ("100000xps3", "kimi-k3", None, [("token_time", 3600.0)], Truth.FALSE),
        ("2xrtx-5090", "llama-70b", "q4_0", [("cost_per_million", None)], Truth.TRUE),
    ],
)
def test_estimates_judge_real_statements(
    machines: str,
    model: str,
    quantisation: str | None,
    claims: list[tuple[str, float | None]],
    truth: Truth,
) -> None:
    catalogue = load_catalogue()
    hypothesis = Hypothesis(
        name="x", says="x", machines=machines, model=model, quantisation=quantisation, link=None,
        failures="always-on", against="h100", streams=8, context_tokens=4096, prompt_tokens=1024,
        by="estimate", claims_to_hold=True, claims=tuple(Claim(name, limit, name) for name, limit in claims),
    )  # fmt: skip
    found = judge(hypothesis, EstimateMethod(catalogue, default_assumptions(catalogue)).figures(hypothesis))
    assert found.truth is truth
