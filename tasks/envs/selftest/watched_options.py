"""Options of a reset that note which of them are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _reads_one(method: Any) -> Any:
    def read(self: WatchedOptions, name: str, *more: Any) -> Any:
        self.noted.add(name)
        return method(self, name, *more)

    return read


def _reads_all(method: Any) -> Any:
    def read(self: WatchedOptions, *more: Any) -> Any:
        self.noted.update(dict.keys(self))
        return method(self, *more)

    return read


class WatchedOptions(dict[str, Any]):
    """A dict that adds the names of read entries to a set."""

    def __init__(self, options: Mapping[str, Any], noted: set[str]) -> None:
        super().__init__(options)
        self.noted = noted

    __getitem__, __contains__ = _reads_one(dict.__getitem__), _reads_one(dict.__contains__)
    get, pop, setdefault = (_reads_one(method) for method in (dict.get, dict.pop, dict.setdefault))
    __iter__, __or__ = _reads_all(dict.__iter__), _reads_all(dict.__or__)
    keys, values, items, copy = (_reads_all(method) for method in (dict.keys, dict.values, dict.items, dict.copy))
