"""One table of a catalogue file, read strictly: every key known, every value with unit and source.

A value stands either alone, with the table's `source` (or `unverified = true`) as its origin, or with its
own: `memory = { value = "256 MiB", source = "...", note = "..." }`. Errors name file, line, table and
field, and the nearest known name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.catalogue.provenance import Provenance
from shoal.core.errors import ConfigError
from shoal.core.names import nearest_text
from shoal.core.units import Dimension, parse

ORIGIN_KEYS: Final = frozenset({"source", "unverified", "note"})


@dataclass(frozen=True, slots=True)
class TomlFile:
    """Where a table came from, for error messages. name: as a person knows the file."""

    name: str
    text: str

    def line_of(self, path: tuple[str, ...], key: str | None) -> int | None:
        """The line of `key` in the table `path`, or of the table; None where neither is found."""
        lines = self.text.splitlines()
        header = ".".join(path)
        start = next(
            (i for i, line in enumerate(lines) if line.strip().replace('"', "") == f"[{header}]"), None
        )
        if start is None:
            return self.line_of(path[:-1], path[-1]) if len(path) > 1 else None
        if key is not None:
            for number in range(start + 1, len(lines)):
                if lines[number].lstrip().startswith("["):
                    break
                if re.match(rf'\s*"?{re.escape(key)}"?\s*=', lines[number]):
                    return number + 1
        return start + 1


class TomlTable:
    """Takes values out of one table and remembers where each came from.

    known_sources: keys that a source may be; a source with a space in it is a citation in itself.
    """

    def __init__(
        self,
        file: TomlFile,
        path: tuple[str, ...],
        table: Mapping[str, Any],
        known_sources: Collection[str],
        inherited: Provenance | None = None,
    ) -> None:
        self._file = file
        self._path = path
        self._known_sources = known_sources
        self._left: dict[str, Any] = dict(table)
        self._seen: list[str] = []
        self.provenance: dict[str, Provenance] = {}
        self._default = self._origin(None, self._take_origin(self._left)) or inherited

    # ------------------------------------------------------------ taking values

    def has(self, key: str) -> bool:
        return key in self._left

    def quantity(self, key: str, dimension: Dimension) -> float:
        """Raises ConfigError where `key` is absent, or its value does not fit `dimension`."""
        value = self._take(key)
        return parse(value, dimension, what=f"{key} of {self.where(key)}")

    def optional_quantity(self, key: str, dimension: Dimension) -> float | None:
        self._seen.append(key)
        return self.quantity(key, dimension) if self.has(key) else None

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        if default is not None and not self.has(key):
            self._seen.append(key)
            return default
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"is {value!r}, not a whole number of {least} or more")
        return value

    def optional_integer(self, key: str, *, least: int = 1) -> int | None:
        self._seen.append(key)
        return self.integer(key, least=least) if self.has(key) else None

    def number(self, key: str) -> float:
        """A plain number without a unit: a shape parameter, bits a parameter."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.error(key, f"is {value!r}, not a number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        self._seen.append(key)
        return self.number(key) if self.has(key) else None

    def flag(self, key: str) -> bool:
        """False where it is absent."""
        self._seen.append(key)
        if not self.has(key):
            return False
        value = self._take(key)
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        if default is not None and not self.has(key):
            self._seen.append(key)
            return default
        value = self._take(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"is {value!r}, not a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, about the entry itself, so without a source; empty where absent."""
        self._seen.append(key)
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.error(key, f"is {value!r}, not a list of texts")
        return tuple(value)

    def label(self, key: str) -> str:
        """A text about the entry itself, so without a source."""
        self._seen.append(key)
        value = self._left.pop(key, None)
        if not isinstance(value, str) or not value:
            raise self.error(key, "is missing" if value is None else f"is {value!r}, not a text")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...] | None:
        """A list of `count` numbers from 0; None where absent."""
        self._seen.append(key)
        if not self.has(key):
            return None
        value = self._take(key)
        is_fine = isinstance(value, list) and len(value) == count
        if not is_fine or not all(isinstance(entry, (int, float)) and entry >= 0 for entry in value):
            raise self.error(key, f"is not a list of {count} numbers from 0")
        return tuple(float(entry) for entry in value)

    def table(self, key: str) -> TomlTable:
        """A table inside this one; its values inherit this one's source."""
        self._seen.append(key)
        value = self._left.pop(key, None)
        if not isinstance(value, dict):
            raise self.error(key, "is missing" if value is None else "is not a table")
        return TomlTable(self._file, (*self._path, key), value, self._known_sources, self._default)

    def tables(self, key: str) -> dict[str, TomlTable]:
        """Named tables inside `key`; empty where it is absent."""
        self._seen.append(key)
        value = self._left.pop(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "is not a table")
        found = {}
        for name, inner in value.items():
            if not isinstance(inner, dict):
                raise self.error(key, f"holds {name!r}, which is not a table")
            path = (*self._path, key, name)
            found[name] = TomlTable(self._file, path, inner, self._known_sources, self._default)
        return found

    def know(self, *keys: str) -> None:
        """Names of further fields, for the hint beside a misspelt one."""
        self._seen += keys

    def end(self) -> None:
        """Raise ConfigError for a key that nobody asked for."""
        for key in self._left:
            raise self.error(key, f"is no field here{nearest_text(key, self._seen)}")

    # ------------------------------------------------------------ errors

    def where(self, key: str | None = None) -> str:
        """ "machine.ps3 in machines/consoles.toml, line 12" """
        line = self._file.line_of(self._path, key)
        place = self._file.name if line is None else f"{self._file.name}, line {line}"
        return f"{'.'.join(self._path)} in {place}"

    def error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{key} of {self.where(key)} {problem}.")

    # ------------------------------------------------------------ origins

    def _take(self, key: str) -> Any:
        self._seen.append(key)
        if key not in self._left:
            raise self.error(key, "is missing")
        value = self._left.pop(key)
        origin: Provenance | None = None
        if isinstance(value, dict):
            value = dict(value)
            origin = self._origin(key, self._take_origin(value))
            if set(value) != {"value"}:
                raise self.error(key, "must have value, and beside it only source, unverified and note")
            value = value["value"]
        origin = origin or self._default
        if origin is None:
            raise self.error(key, "has no source; name one, or say unverified = true")
        self.provenance[key] = origin
        return value

    def _take_origin(self, table: dict[str, Any]) -> dict[str, Any]:
        return {key: table.pop(key) for key in ORIGIN_KEYS & set(table)}

    def _origin(self, key: str | None, raw: Mapping[str, Any]) -> Provenance | None:
        if not raw:
            return None
        source, unverified = raw.get("source"), raw.get("unverified", False)
        if source is None and unverified is not True:
            raise self.error(key or "the table", "needs a source, or unverified = true")
        if source is not None:
            self._check_source(key or "source", source)
        return Provenance(source, is_unverified=bool(unverified), note=raw.get("note"))

    def _check_source(self, key: str, source: object) -> None:
        if not isinstance(source, str) or not source:
            raise self.error(key, f"has {source!r} for a source, not a text")
        for part in source.split("+"):
            if " " not in part.strip() and part.strip() not in self._known_sources:
                raise self.error(
                    key,
                    f"cites {part.strip()!r}, which is no known source"
                    f"{nearest_text(part.strip(), self._known_sources)}",
                )
