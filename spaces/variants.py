"""Spaces whose dimensions depend on values of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .dimension import Dimension
from .space import Space, read_for
from .values import Nested, Value, flatten


class Variants(Space):
    """A space whose dimensions depend on the values of some of them.

    These are its selectors. As a mapping it is the space of their defaults. Where values are given, they select the
    space first. So the same name may have another range under another choice, which a condition cannot express.
    """

    def __init__(self, select: Callable[[Mapping[str, Value]], Space], selectors: Mapping[str, Dimension]) -> None:
        """Build the space of the defaults.

        Args:
            select: function of the selectors' values by dotted name; it returns the whole space, selectors included.
            selectors: the selectors, by dotted name, with their defaults.
        """
        self.select, self.selectors = select, dict(selectors)
        super().__init__(**self.of({})._entries)

    def of(self, *values: Mapping[str, Any]) -> Space:
        """Return the space that values select, see `Space.of`.

        They are nested or dotted; the first that has a selector counts.
        """
        chosen: dict[str, Value] = {}
        by_name = [flatten(nested) for nested in values]
        for name, dimension in self.selectors.items():
            value = next((flat[name] for flat in by_name if name in flat), dimension.default)
            chosen[name] = dimension.check(value, name)
        return self.select(chosen)

    def validate(self, values: Mapping[str, Any], *, fixed: Mapping[str, Any] | None = None) -> Nested:
        return self.of(values, fixed or {}).validate(values, fixed=fixed)

    def parse(self, *assignments: str) -> Nested:
        pairs = (
            (name.strip(), text.strip()) for name, _, text in (assignment.partition("=") for assignment in assignments)
        )
        chosen = {name: read_for(self.selectors[name], text) for name, text in pairs if name in self.selectors}
        return self.of(chosen).parse(*assignments)

    def identifying(self, values: Mapping[str, Any]) -> dict[str, Value]:
        return self.of(values).identifying(values)

    def structure(self, values: Mapping[str, Any]) -> dict[str, Value]:
        return self.of(values).structure(values)

    def dynamic(self, values: Mapping[str, Any]) -> dict[str, Value]:
        return self.of(values).dynamic(values)

    def split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bool]]:
        return self.of(values).split(values)

    def fix(self, values: Mapping[str, Any]) -> Space:
        return self.of(values).fix(values)


def without(space: Space, names: Sequence[str]) -> Space:
    """Return a space without these entries."""
    return Space(**{name: entry for name, entry in space.items() if name not in names})
