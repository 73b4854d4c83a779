"""Registries: what Rekindle finds by name, its own and what installed packages offer.

A package offers a class or function as an entry point of a registry's group:

    [project.entry-points."rekindle.schedulers"]
    mine = "my_package.mine:Mine"

Nothing is imported before it is used. Importing this module imports nothing slow.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


class PluginError(ValueError):
    """A name is unknown, or what a package offers under it cannot be used."""


class Plugin(NamedTuple):
    """An object that an installed package offers.

    Attributes:
        kind: its registry's kind, such as "scheduler".
        name: name by which it is used.
        target: "package.module:object".
        package: distribution that offers it; "" if unknown.
        version: the distribution's version.
        error: why it cannot be used; "" if it can.
    """

    kind: str
    name: str
    target: str
    package: str
    version: str
    error: str = ""


class Registry:
    """Objects of one kind by name.

    Args:
        noun: noun for messages, such as "scheduler".
        group: group of entry points in which packages offer theirs.
        homes: ".module:object" of each of Rekindle's own, relative to its root.
        problem: returns why an offered object cannot be used, or "", given its name, the object and its origin.
        spelled: ".module:function" that returns the object of a name such as "package.module:Class(argument=1)", or
            raises PluginError; "" if there are no such names.
    """

    def __init__(
        self,
        noun: str,
        group: str,
        homes: Mapping[str, str],
        problem: Callable[[str, Any, str], str],
        spelled: str = "",
    ):
        self.noun, self.group, self.homes, self.problem, self.spelled = noun, group, homes, problem, spelled

    def names(self) -> list[str]:
        """Return all names, Rekindle's own first."""
        return [*self.homes, *sorted({point.name for point in offers(self.group)} - self.homes.keys())]

    def load(self, name: str) -> Any:
        """Import and return the object with this name.

        Raises:
            PluginError: no object or several have the name, or it cannot be imported or used.
        """
        if self.spelled and ":" in name:
            return _imported(self.spelled)(name)
        point = self._point(name)
        if name in self.homes:
            try:
                return _imported(self.homes[name])
            except ImportError as error:  # it needs an extra that is not installed
                raise PluginError(str(error)) from error
        if point is not None:
            return self._offered(point)
        names = self.names()
        near = get_close_matches(name.lower(), names, n=1)
        cure = f"; did you mean {near[0]}?" if near else ""
        raise PluginError(f"a {self.noun} must be one of {', '.join(names)}, but got {name!r}{cure}")

    def target(self, name: str) -> str | None:
        """Return the "package.module:object" that a package offers under a name, without importing it.

        Raises:
            PluginError: several objects have the name.
        """
        point = self._point(name)
        return None if point is None else point.value

    def plugins(self) -> Iterator[Plugin]:
        """Yield what installed packages offer, each imported to see whether it can be used."""
        for point in sorted(offers(self.group), key=lambda point: (point.name, point.value)):
            error = ""
            try:
                if point.name in self.homes:
                    raise self._ambiguous(point.name, [_origin(point), "Rekindle's own"])
                self.load(point.name)
            except PluginError as failure:
                error = " ".join(str(failure).split())
            package, version = (point.dist.name, point.dist.version) if point.dist else ("", "")
            yield Plugin(self.noun, point.name, point.value, package, version, error)

    def _point(self, name: str) -> EntryPoint | None:
        points = [*offers(self.group).select(name=name)] if name not in self.homes else []  # ours are not replaced
        if len(points) > 1:
            raise self._ambiguous(name, [*map(_origin, points)])
        return points[0] if points else None

    def _ambiguous(self, name: str, origins: list[str]) -> PluginError:
        return PluginError(
            f"{self.noun}s must have names of their own, but {name!r} is {' and '.join(sorted(origins))}; give yours "
            "another name, in its class and among its package's entry points"
        )

    def _offered(self, point: EntryPoint) -> Any:
        try:
            offered = point.load()
        except Exception as error:  # importing runs the package's code
            prefix = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
            raise PluginError(
                f"the {self.noun} {point.name!r}, {_origin(point)}, cannot be imported: {prefix}{error}"
            ) from error
        if problem := self.problem(point.name, offered, _origin(point)):
            raise PluginError(problem)
        return offered


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name if point.dist else 'an unknown package'}"


def _imported(home: str) -> Any:
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module, __package__), attribute)


def offers(group: str) -> EntryPoints:
    """Return the entry points that installed packages offer in a group.

    Looking them up reads a file of every installed package. They are therefore cached until a folder on `sys.path`
    changes.
    """
    return _offers(group, tuple((folder, _changed(folder)) for folder in sys.path))


@lru_cache(maxsize=64)
def _offers(group: str, folders: tuple[tuple[str, int], ...]) -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _changed(folder: str) -> int:
    """Return a folder's last change, in nanoseconds; 0 without a folder."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0
