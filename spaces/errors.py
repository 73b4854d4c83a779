"""What can be wrong with a space or with values for it."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


class SpaceError(ValueError):
    """A space that means nothing, or values that do not belong to it."""


class UnknownParameter(SpaceError):
    """A name that the space does not have, or that does not apply beside the other values."""


class MissingParameter(SpaceError):
    """A hyperparameter without a default that was not given."""


class OutOfRange(SpaceError):
    """A value of the right type that the dimension does not contain, or that is not finite."""


class WrongType(SpaceError):
    """A value of another type than the dimension's."""


def near(name: str, known: Collection[str]) -> str:
    """'; did you mean ...?' with the dotted names that are like this one in the last part or else as a whole, or ''."""
    leaves: dict[str, list[str]] = {}
    for path in known:
        leaves.setdefault(path.rpartition(".")[2], []).append(path)
    alike = [path for leaf in get_close_matches(name.rpartition(".")[2], leaves, cutoff=0.7) for path in leaves[leaf]]
    found = get_close_matches(name, alike, cutoff=0) or get_close_matches(name, list(known), cutoff=0.7)
    return f"; did you mean {' or '.join(found)}?" if found else ""
