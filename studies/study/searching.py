"""Which hyperparameters are searched, where not all of them are: the others have their defaults."""

from __future__ import annotations

from collections.abc import Sequence

from ...spaces import Space, SpaceError, unflatten
from ...spaces.errors import near
from ...spaces.values import REQUIRED, Nested, Value


def only(space: Space, search: Sequence[str]) -> Space:
    """The space with all but these at their defaults; SpaceError names what it has not."""
    return space.fix(closed(space, search))


def closed(space: Space, search: Sequence[str]) -> Nested:
    """The defaults of all but these, where they apply: of adam and sgd's momentum, only adam."""
    flat = space.flat()
    for name in search:
        if name not in flat:
            raise SpaceError(f"search: {name!r} is not a hyperparameter that is open{near(name, flat)}")
    found: dict[str, Value] = {}
    for row in space.rows:
        decided = [condition for condition in row.conditions if condition.path not in search]
        if not (applies := all(condition.holds(found) for condition in decided)) and row.path in search:
            raise SpaceError(
                f"search: {row.path} applies only when {' and '.join(map(str, row.conditions))}, which is "
                "not the default; fix that, or search it too"
            )
        if applies and row.path not in search and (default := row.dimension.default) is not REQUIRED:
            found[row.path] = default
    return unflatten(found)
