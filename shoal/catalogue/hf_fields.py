"""The fields of a `config.json`, read strictly: a missing or malformed one is named, with its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.core.names import nearest_text


class HfFields:
    """One object of the file. where: the file, and the path in it, for errors."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self._fields = fields
        self._where = where

    def has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def nested(self, key: str) -> HfFields:
        value = self._fields.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "is missing" if value is None else "is not an object")
        return HfFields(value, f"{key} in {self._where}")

    def text(self, key: str) -> str:
        value = self._fields.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, "is missing" if value is None else f"is {value!r}, not a text")
        return value

    def integer(self, key: str, *otherwise: str | int) -> int:
        """The first present of `key` and the names in `otherwise`; a number there is the default."""
        for name in (key, *(entry for entry in otherwise if isinstance(entry, str))):
            value = self._fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.error(name, f"is {value!r}, not a whole number from 0")
            return value
        for entry in otherwise:
            if isinstance(entry, int):
                return entry
        raise self.error(
            key, f"is missing{nearest_text(key, [name for name in self._fields if self.has(name)])}"
        )

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._fields.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}, not true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self._fields.get(key)
        if not isinstance(value, list) or not all(isinstance(entry, int) for entry in value):
            raise self.error(key, "is missing" if value is None else "is not a list of whole numbers")
        return tuple(value)

    def layer_types(self, num_layers: int, period: Sequence[str]) -> tuple[str, ...]:
        """The file's `layer_types`, or `period` repeated where it has none."""
        value = self._fields.get("layer_types")
        if value is None:
            return tuple(period[layer % len(period)] for layer in range(num_layers))
        if not isinstance(value, list) or len(value) != num_layers:
            raise self.error("layer_types", f"is not a list of {num_layers} names")
        for entry in value:
            if entry not in period:
                raise self.error("layer_types", f"names {entry!r}{nearest_text(str(entry), list(period))}")
        return tuple(value)

    def error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{key} of {self._where} {problem}.")
