"""The catalogue: all its files read, checked and joined; entries found by name.

The files lie beside this module. A user's own file may add entries of every kind, or replace one by
using its name; it stands last. The only module here that reads files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal.catalogue.failure import FailureModel
from shoal.catalogue.machine import LinkKind, MachineKind
from shoal.catalogue.model_anatomy import ModelAnatomy, Quantisation
from shoal.catalogue.provenance import Provenance
from shoal.catalogue.read_machine import read_class, read_failure, read_link, read_machine
from shoal.catalogue.read_model import read_model, read_quantisation
from shoal.catalogue.toml_table import ORIGIN_KEYS, TomlFile, TomlTable
from shoal.core.errors import ConfigError
from shoal.core.names import find, nearest_text
from shoal.core.units import Dimension

T = TypeVar("T")
Entry = TypeVar("Entry", MachineKind, ModelAnatomy, Quantisation)

SECTIONS: Final = ("source", "class", "link", "machine", "quantisation", "model", "failure", "price")
LABELS: Final = frozenset({"title", "aliases", "class", "link", "like", "notes"})


@dataclass(frozen=True, slots=True)
class Price:
    """One price or period. value: in the base unit of its dimension."""

    name: str
    title: str
    value: float
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything known. The methods find an entry by name or alias, whatever the case and the dashes,
    and raise ConfigError with the nearest names where there is none."""

    machines: Mapping[str, MachineKind]
    links: Mapping[str, LinkKind]
    models: Mapping[str, ModelAnatomy]
    quantisations: Mapping[str, Quantisation]
    failures: Mapping[str, FailureModel]
    prices: Mapping[str, Price]
    sources: Mapping[str, str]

    def machine(self, name: str) -> MachineKind:
        return find(name, _with_aliases(self.machines), kind="machine")

    def model(self, name: str) -> ModelAnatomy:
        return find(name, _with_aliases(self.models), kind="model")

    def quantisation(self, name: str) -> Quantisation:
        return find(name, _with_aliases(self.quantisations), kind="quantisation")

    def link(self, name: str) -> LinkKind:
        return find(name, self.links, kind="link")

    def failure(self, name: str) -> FailureModel:
        return find(name, self.failures, kind="failure model")

    def price(self, name: str) -> float:
        return find(name, self.prices, kind="price").value


def load_catalogue(extra: Sequence[Path] = ()) -> Catalogue:
    """Read all packaged files, then `extra` ones. About 0.05 s.

    Raises ConfigError naming file, line and field for anything that is missing, misspelt, without
    unit or without source.
    """
    parsed = [_parse(file.name, file.read_text()) for file in _packaged(files(__package__))]
    parsed += [_parse(str(path), _read(path)) for path in extra]
    entries = _Entries()
    for file, content in parsed:
        entries.add(file, content)
    return entries.build()


def _packaged(folder: Traversable) -> Iterable[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _packaged(entry)
        elif entry.name.endswith(".toml"):
            yield entry


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The catalogue file {path} cannot be read: {error}.") from error


def _parse(name: str, text: str) -> tuple[TomlFile, Mapping[str, Any]]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The catalogue file {name} is not TOML: {error}.") from error
    for section, tables in content.items():
        if section not in SECTIONS:
            raise ConfigError(
                f"The catalogue file {name} has [{section}], which is no section"
                f"{nearest_text(section, SECTIONS)}.",
                next_step=f"Sections are {', '.join(SECTIONS)}.",
            )
        if not isinstance(tables, dict):
            raise ConfigError(f"{section} in the catalogue file {name} is not a table.")
    return TomlFile(name, text), content


class _Entries:
    """Raw tables of all files by section and name, the later file's winning."""

    def __init__(self) -> None:
        self._raw: dict[str, dict[str, tuple[TomlFile, Any]]] = {section: {} for section in SECTIONS}

    def add(self, file: TomlFile, content: Mapping[str, Mapping[str, Any]]) -> None:
        for section, tables in content.items():
            for name, table in tables.items():
                self._raw[section][name] = (file, table)

    def build(self) -> Catalogue:
        sources = {name: str(text) for name, (_, text) in self._raw["source"].items()}
        classes = self._read("class", sources, lambda _, table: read_class(table))
        links = self._read("link", sources, read_link)
        return Catalogue(
            machines=self._read(
                "machine", sources, lambda name, table: read_machine(name, table, classes, links)
            ),
            links=links,
            models=self._read("model", sources, read_model),
            quantisations=self._read("quantisation", sources, read_quantisation),
            failures=self._read("failure", sources, read_failure),
            prices=self._read("price", sources, _read_price),
            sources=sources,
        )

    def _read(
        self, section: str, sources: Mapping[str, str], read: Callable[[str, TomlTable], T]
    ) -> dict[str, T]:
        return {name: read(name, self._table(section, name, sources)) for name in self._raw[section]}

    def _table(self, section: str, name: str, sources: Mapping[str, str]) -> TomlTable:
        file, raw = self._raw[section][name]
        if not isinstance(raw, dict):
            raise ConfigError(f"{section}.{name} in {file.name} is not a table.")
        return TomlTable(file, (section, name), self._with_parent(section, name, raw), sources)

    def _with_parent(self, section: str, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        """`like = "other"` takes the other entry's values, with their own sources, where it has none."""
        if "like" not in raw:
            return dict(raw)
        file, _ = self._raw[section][name]
        parent = self._raw[section].get(str(raw["like"]))
        if parent is None or parent[1] is raw or "like" in parent[1]:
            hint = nearest_text(str(raw["like"]), list(self._raw[section]))
            raise ConfigError(
                f"{section}.{name} in {file.name} is like {raw['like']!r}, "
                f"which is no entry of its own{hint}."
            )
        own = {key: value for key, value in raw.items() if key != "like"}
        return _explicit(parent[1]) | own


def _explicit(table: Mapping[str, Any]) -> dict[str, Any]:
    """Values with the table's own origin written to each, so that another table can take them over."""
    origin = {key: table[key] for key in ORIGIN_KEYS if key in table}
    return {
        key: value if key in LABELS or isinstance(value, dict) else {"value": value, **origin}
        for key, value in table.items()
        if key not in ORIGIN_KEYS and key != "aliases"
    }


def _read_price(name: str, table: TomlTable) -> Price:
    title, dimension = table.label("title"), table.label("dimension")
    known = {entry.name.lower(): entry for entry in Dimension}
    if dimension not in known:
        raise table.error("dimension", f"is {dimension!r}{nearest_text(dimension, known)}")
    price = Price(name, title, table.quantity("amount", known[dimension]), table.provenance["amount"])
    table.end()
    return price


def _with_aliases(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    by_name = {alias: entry for entry in entries.values() for alias in entry.aliases}
    return by_name | dict(entries)
