"""Settings of another tool's configuration, and the hyperparameters they become."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ABSENT: tuple[Any, ...] = (None, False, {}, "")  # values that switch something off


class Converted(NamedTuple):
    """A run file, and the settings without a counterpart."""

    content: dict[str, Any]
    without: list[str]


class Settings:
    """Settings by path, and the hyperparameters they became.

    Attributes:
        values: settings by path, with the tool's defaults for absent ones.
        location: file and entry that they are from, for errors.
        names: name of the hyperparameter that each used path became; None for those that became something else.
    """

    def __init__(self, values: Mapping[str, Any], location: str = ""):
        """Hold settings that are not read yet; see the attributes."""
        self.values, self.location = values, location
        self.names: dict[str, str | None] = {}

    def take(self, path: str, default: Any = None, name: str | None = None) -> Any:
        """Return a setting, or the default if it is absent or null."""
        self.names[path] = name
        value = self.values.get(path)
        return default if value is None else value

    def number(self, path: str, default: Any = None, name: str | None = None) -> float:
        """Return a setting that must be a number."""
        return self.as_number(path, self.take(path, default, name))

    def as_number(self, path: str, value: Any) -> float:
        """Return a setting's value, or a part of it, as a number."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self.location}: {path} must be a number, but got {value!r}; mend it")
        return number

    def count(self, path: str, default: Any = None, name: str | None = None, least: int = 1) -> int:
        """Return a setting that must be a whole number."""
        return self.as_count(path, self.take(path, default, name), least)

    def as_count(self, path: str, value: Any, least: int = 1) -> int:
        """Return a setting's value, or a part of it, as a count."""
        number = self.as_number(path, value)
        if not number.is_integer() or number < least:
            law = f"{self.location}: {path} must be a whole number, at least {least}"
            raise ValueError(f"{law}, but got {value!r}; mend it")
        return int(number)

    def mapping(self, path: str, name: str | None = None) -> dict[str, Any]:
        """Return a setting that must hold others by name."""
        value = self.take(path, {}, name)
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.location}: {path} must hold settings by name, but got {value!r}; mend it")
        return dict(value)

    def have(self, prefix: str) -> bool:
        """Return whether a section has settings, or is there and empty."""
        section = prefix.removesuffix(".")
        return any(path.startswith(prefix) for path in self.values) or self.values.get(section) == {}

    def without(self, settings: Mapping[str, Any], unknown: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given settings that became nothing.

        Args:
            settings: settings without defaults.
            unknown: hyperparameters that the task lacks.
        """
        return {p: value for p, value in settings.items() if p not in self.names or self.names[p] in unknown}


def listed(settings: Mapping[str, Any], absent: tuple[Any, ...] = ABSENT) -> list[str]:
    """Return settings without a counterpart as lines."""
    return [f"{path}: {value}" for path, value in settings.items() if value not in absent]


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested mappings by path."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
