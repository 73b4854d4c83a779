"""User-defined priors for hyperparameters of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from .choices import Argument, Choice, Fixed
from .dimension import Dimension, Maybe
from .errors import SpaceError, UnknownParameter, near
from .priors import parse, render
from .ranges import Curve, Fidelity, Integer, Range, Sizes
from .space import Space
from .values import REQUIRED, Value

INSIDE = 0.318  # a quantile at which a real prior hardly ever gives an integer, so integer dimensions refuse it


def with_priors(space: Space, priors: Mapping[str, str]) -> Space:
    """Return the space with these priors for some of its hyperparameters.

    Each hyperparameter keeps its condition and whether it is structural. It keeps its default if the prior contains it
    and names no other; else its default becomes the prior's median. Hyperparameters that depend on values outside the
    prior are left out.

    Args:
        space: the space.
        priors: texts by dotted name, see `priors`.

    Raises:
        UnknownParameter: a name is not in the space.
        SpaceError: a prior is malformed, or allows values that the hyperparameter does not.
    """
    flat = space.flat()
    for name, text in priors.items():
        if name not in flat:
            raise UnknownParameter(f"there is no hyperparameter {name!r} that is open{near(name, flat)}")
        flat[name] = _replaced(flat[name], text, name)
    for row in space.rows:
        changed = [c for c in row.conditions if c.path in priors or c.path not in flat]
        allowed = {c.key: _allowed(flat.get(c.path), c.values) for c in changed}
        if not all(allowed.values()):
            del flat[row.path]
        elif allowed:
            flat[row.path] = replace(flat[row.path], when={**flat[row.path].when, **allowed})
    return Space._of(flat)


def _allowed(dimension: Dimension | None, values: Sequence[Value]) -> tuple[Value, ...]:
    """Return the values that a dimension can have; none without it."""
    nodes = []
    for value in values if dimension is not None else ():
        with suppress(SpaceError):
            assert dimension is not None
            nodes.append(dimension.check(value, ""))
    return tuple(nodes)


def _replaced(old: Dimension, text: str, name: str) -> Dimension:
    new = parse(text, name)
    if isinstance(new, Fidelity | Curve | Sizes | Fixed | Argument):
        raise SpaceError(f"{name}: a prior must be searched, but got {text}; to fix a value write {name}=VALUE")
    if new.when or not new.search:
        raise SpaceError(
            f"{name}: a prior must have no when= and no search=, since {name} keeps its own, but got {text}"
        )
    for value in _ends(new):
        try:
            old.check(value, name)
        except SpaceError as error:
            raise type(error)(f"the prior {render(new)} has values that are not allowed: {error}") from None
    if new.default is REQUIRED:
        new = replace(new, default=_default(old, new, name))
    return replace(new, when=old.when, structural=old.structural)


def _ends(prior: Dimension) -> list[Value]:
    """Return the values that a prior is checked with.

    For a choice these are all of its values; for a range the ends, the default and an inner quantile.
    """
    default = [] if prior.default is REQUIRED else [prior.default]
    if isinstance(prior, Maybe):
        return [None, *_ends(prior.dimension), *default]
    if isinstance(prior, Choice):
        return [*prior.values, *default]
    if isinstance(prior, Range | Integer):
        return [prior.low, prior.high, prior.at(INSIDE), *default]
    return [prior.at(INSIDE), *default]  # a normal prior has no ends; values outside are drawn again


def with_defaults(space: Space) -> Space:
    """Return the space with medians as defaults where there are none."""
    missing = {path: d for path, d in space.flat().items() if d.default is REQUIRED}
    return Space._of({**space.flat(), **{path: replace(d, default=_median(d)) for path, d in missing.items()}})


def _default(old: Dimension, new: Dimension, name: str) -> Value:
    if old.default is REQUIRED:
        return _median(new)
    try:
        return new.check(old.default, name)
    except SpaceError:
        return _median(new)


def _median(prior: Dimension) -> Value:
    return (prior.dimension if isinstance(prior, Maybe) else prior).at(0.5)
