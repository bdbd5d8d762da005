"""`hypothesis.toml`, read strictly: tables [hypothesis.NAME] with machines, a model and claims."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from shoal.catalogue.provenance import Provenance
from shoal.catalogue.toml_table import TomlFile, TomlTable
from shoal.core.errors import ConfigError
from shoal.core.names import nearest_text
from shoal.core.units import parse
from shoal.planner.hypothesis import HOLDS, MEASURES, Claim, Hypothesis

SECTION: Final = "hypothesis"
SERVER: Final = "server"
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
        by=table.text("by", "estimate"),
        claims_to_hold=table.flag(HOLDS),
        claims=claims,
    )
    table.know(*MEASURES, "quant", "link")
    table.end()
    if not claims and not hypothesis.claims_to_hold:
        raise table.error("claims", f"are missing: name one of {HOLDS}, {', '.join(MEASURES)}")
    return hypothesis


def _claim(table: TomlTable, name: str) -> Claim:
    measure, text = MEASURES[name], table.text(name)
    comparison, _, rest = text.partition(" ")
    if comparison != measure.comparison:
        raise table.error(name, f'is {text!r}; write it like "{measure.comparison} ...", so that it can fail')
    shown = f"{name.replace('_', ' ')} {text}"
    if rest.strip() == SERVER and measure.is_of_server:
        return Claim(name, None, shown)
    return Claim(name, parse(rest, measure.dimension, what=f"{name} of {table.where(name)}"), shown)
