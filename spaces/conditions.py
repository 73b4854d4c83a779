"""Conditions of dimensions: resolving the names in `when`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .choices import Fixed
from .dimension import Dimension
from .errors import SpaceError, UnknownParameter, near
from .values import Value, identity


class Condition(NamedTuple):
    """A condition: the value at `path` must be one of `values`.

    `key` is the name by which `when` refers to it.
    """

    key: str
    path: str
    values: tuple[Value, ...]

    def holds(self, flat: Mapping[str, Value]) -> bool:
        """Return whether the condition holds for these values.

        It does not hold if the value is absent.
        """
        return self.path in flat and identity(flat[self.path]) in map(identity, self.values)

    def is_open(self, left: Mapping[str, Dimension]) -> bool:
        """Return whether the condition still depends on dimensions that are left open."""
        dimension = left.get(self.path)
        if isinstance(dimension, Fixed):
            return self.holds({self.path: dimension.value})
        return dimension is not None

    def __str__(self) -> str:
        return f"{self.path} is {' or '.join(map(repr, self.values))}"


class Row(NamedTuple):
    """A dimension of a space, with its dotted name and conditions."""

    path: str
    dimension: Dimension
    conditions: tuple[Condition, ...]

    def applies(self, flat: Mapping[str, Value]) -> bool:
        """Return whether the dimension applies, given the values decided so far."""
        return all(condition.holds(flat) for condition in self.conditions)

    def refusal(self) -> UnknownParameter:
        """Return the error for a value where the dimension does not apply."""
        return UnknownParameter(
            f"{self.path} applies only when {' and '.join(map(str, self.conditions))}; leave it out"
        )


class Unresolved(SpaceError):
    """A condition whose name is not in this space.

    It may be in an enclosing space.
    """


def rows(flat: Mapping[str, Dimension]) -> Iterator[Row]:
    """Yield the dimensions with their conditions, in order.

    A dimension that a condition names comes before the dimension that has the condition.

    Raises:
        SpaceError: a condition names a later dimension, or a value that the dimension cannot have.
        Unresolved: a name is unknown.
    """
    above: dict[str, Dimension] = {}
    for path, dimension in flat.items():
        conditions = []
        for key, values in dimension.when.items():
            target = _look_up(key, path, flat)
            if target not in above:
                raise SpaceError(f"{path} depends on {target}, which must be declared above it")
            one = above[target]
            # a dimension that was fixed later may no longer allow every value named here; those conditions never hold
            checked = values if isinstance(one, Fixed) else tuple(one.check(v, f"{path}: when {key}") for v in values)
            conditions.append(Condition(key, target, checked))
        above[path] = dimension
        yield Row(path, dimension, tuple(conditions))


def _look_up(key: str, path: str, flat: Mapping[str, Dimension]) -> str:
    """Return the dotted name that `key` means to the dimension at `path`.

    The innermost group is searched first, then each enclosing one.
    """
    groups = path.split(".")[:-1]
    for depth in range(len(groups), -1, -1):
        name = ".".join([*groups[:depth], key])
        if name in flat:
            return name
    raise Unresolved(f"{path} depends on {key}, which is not there{near(key, flat)}")
