"""The search-space language: what a hyperparameter may be, beside its default, for every driver alike."""

from .custom_priors import with_priors
from .dimension import Dimension
from .dimensions import (
    categorical,
    curve,
    fidelity,
    fixed,
    integer,
    log_real,
    lognormal,
    maybe,
    near_one,
    normal,
    ordinal,
    real,
)
from .errors import MissingParameter, OutOfRange, SpaceError, UnknownParameter, WrongType
from .space import Space
from .values import REQUIRED, flatten, unflatten

__all__ = [
    "REQUIRED",
    "Dimension",
    "MissingParameter",
    "OutOfRange",
    "Space",
    "SpaceError",
    "UnknownParameter",
    "WrongType",
    "categorical",
    "curve",
    "fidelity",
    "fixed",
    "flatten",
    "integer",
    "log_real",
    "lognormal",
    "maybe",
    "near_one",
    "normal",
    "ordinal",
    "real",
    "unflatten",
    "with_priors",
]
