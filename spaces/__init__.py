"""The search-space language: ranges, priors and defaults of hyperparameters.

Dimensions, conditions, texts of priors and validation of values belong here. Drivers are known in `drivers` alone, and
torch nowhere.
"""

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
