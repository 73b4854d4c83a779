"""The search-space language: ranges, priors and defaults of hyperparameters.

This package has dimensions, conditions, the text form of priors, and the validation of values: of hyperparameters, and
of arguments of Python's interface. Only `drivers` knows Optuna and Orion, and nothing here imports torch.

Dimensions and spaces are loaded on first use, since commands that only read rows need none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import MissingParameter, OutOfRange, SpaceError, UnknownParameter, WrongType
from .values import REQUIRED, flatten, unflatten

if TYPE_CHECKING:
    from .custom_priors import with_priors
    from .dimension import Dimension
    from .dimensions import (
        argument,
        categorical,
        curve,
        entry,
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
        sizes,
    )
    from .space import Space

__all__ = [
    "REQUIRED",
    "Dimension",
    "MissingParameter",
    "OutOfRange",
    "Space",
    "SpaceError",
    "UnknownParameter",
    "WrongType",
    "argument",
    "categorical",
    "curve",
    "entry",
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
    "sizes",
    "unflatten",
    "with_priors",
]
_HOMES = {"Dimension": ".dimension", "Space": ".space", "with_priors": ".custom_priors"}  # others: .dimensions


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, ".dimensions"), __name__), name)
    globals()[name] = value  # the next use finds it without coming here
    return value
