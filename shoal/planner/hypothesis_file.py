"""`hypothesis.toml`, read strictly: tables [hypothesis.NAME] with machines, a model and claims."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shoal.catalogue.provenance import Provenance
from shoal.catalogue.toml_table import TomlFile, TomlTable
from shoal.core.errors import ConfigError
from shoal.core.names import nearest_text
from shoal.core.units import Dimension, parse
from shoal.planner.hypothesis import HOLDS, MEASURES, METHODS, Claim, Hypothesis, Terms

SECTION: Final = "hypothesis"
SERVER: Final = "server"
SIMULATION: Final = "simulation"
MODES: Final = ("fine", "coarse")
STARTS: Final = ("present", "usual")
OWN: Final = Provenance("the hypothesis itself")


def read_hypotheses(path: Path) -> tuple[Hypothesis, ...]:
    """In the file's order. Raises ConfigError naming file, line and field."""
    try:
        text = path.read_text()
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The hypothesis file {path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The hypothesis file {path} is not TOML: {error}.") from error
    return _read_all(TomlFile(str(path), text), content)


def _read_all(file: TomlFile, content: dict[str, Any]) -> tuple[Hypothesis, ...]:
    for key in content:
        if key != SECTION:
            raise ConfigError(f"{file.name} has [{key}], which is no section{nearest_text(key, [SECTION])}.")
    tables = content.get(SECTION)
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(
            f"{file.name} states no hypothesis.", next_step="Write one as a table [hypothesis.NAME]."
        )
    found = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{SECTION}.{name} in {file.name} is not a table.")
        found.append(_read_one(name, TomlTable(file, (SECTION, name), table, (), OWN)))
    return tuple(found)


def _read_one(name: str, table: TomlTable) -> Hypothesis:
    claims = tuple(_claim(table, measure) for measure in MEASURES if table.has(measure))
    hypothesis = Hypothesis(
        name=name,
        says=table.label("says"),
        machines=table.text("machines"),
        model=table.text("model"),
        quantisation=table.text("quant") if table.has("quant") else None,
        link=table.text("link") if table.has("link") else None,
        failures=table.text("failures", "always-on"),
        against=table.text("against", "h100"),
        streams=table.integer("streams", 8, least=1),
        context_tokens=table.integer("context", 4096, least=1),
        prompt_tokens=table.integer("prompt", 1024, least=1),
        by=_one_of(table, "by", METHODS, "estimate"),
        claims_to_hold=table.flag(HOLDS),
        claims=claims,
        terms=_terms(table),
    )
    table.know(*MEASURES, "quant", "link", SIMULATION)
    table.end()
    if not claims and not hypothesis.claims_to_hold:
        raise table.error("claims", f"are missing: name one of {HOLDS}, {', '.join(MEASURES)}")
    return hypothesis


def _terms(parent: TomlTable) -> Terms:
    if not parent.has(SIMULATION):
        return Terms()
    table = parent.table(SIMULATION)
    polite = table.optional_quantity("polite", Dimension.SHARE) or 0.0
    if polite > 1:
        raise table.error("polite", "is more than 100 %")
    start_s = table.optional_quantity("start_time", Dimension.SECONDS)
    terms = Terms(
        duration_s=table.optional_quantity("duration", Dimension.SECONDS),
        runs=table.integer("runs", 3, least=1),
        seed=table.integer("seed", 1),
        mode=_one_of(table, "mode", MODES) if table.has("mode") else None,
        arrivals_per_s=table.optional_quantity("rate", Dimension.REQUESTS_PER_S),
        answer_tokens=table.integer("answer", 128, least=2),
        cell_machines=table.optional_integer("cell_machines"),
        spares=table.integer("spares") if table.has("spares") else None,
        survive=table.integer("survive", 0),
        polite_share=polite,
        is_all_present=_one_of(table, "start", STARTS, "present") == "present",
        start_s=Terms().start_s if start_s is None else start_s,
    )
    for name, value in (("duration", terms.duration_s), ("rate", terms.arrivals_per_s)):
        if value == 0:
            raise table.error(name, "is 0; it must be more")
    table.know("mode", "spares")
    table.end()
    return terms


def _one_of(table: TomlTable, key: str, choices: Sequence[str], default: str | None = None) -> str:
    value = table.text(key, default)
    if value not in choices:
        raise table.error(key, f"is {value!r}, not {' or '.join(choices)}{nearest_text(value, choices)}")
    return value


def _claim(table: TomlTable, name: str) -> Claim:
    measure, text = MEASURES[name], table.text(name)
    comparison, _, rest = text.partition(" ")
    if comparison != measure.comparison:
        raise table.error(name, f'is {text!r}; write it like "{measure.comparison} ...", so that it can fail')
    shown = f"{name.replace('_', ' ')} {text}"
    if rest.strip() == SERVER and measure.is_of_server:
        return Claim(name, None, shown)
    return Claim(name, parse(rest, measure.dimension, what=f"{name} of {table.where(name)}"), shown)
