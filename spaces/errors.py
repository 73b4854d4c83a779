"""What can be wrong with a space or with values for it."""

from __future__ import annotations


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
