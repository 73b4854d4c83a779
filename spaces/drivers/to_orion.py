"""Conversion of spaces to Orion's priors and parameters.

The parameters' names are those of `params`. Orion knows no conditions: it gives every parameter a value, and the values
that do not apply are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..choices import Categorical
from ..ranges import Fidelity, Integer, Normal, Real
from ..space import Space
from ..values import Value
from .params import Dialect, Parameter

ORION = Dialect("Orion", steps=False, fidelities=True, weights=True)
params = ORION.encode  # the form that `ExperimentClient.insert` takes
from_params = ORION.read  # reads a trial's parameters, nested or flat


def priors(space: Space) -> dict[str, str]:
    """Return Orion's priors by parameter name.

    Both `build_experiment(space=...)` and Orion's command line take this form.

    Raises:
        SpaceError: the space has a second fidelity, which Orion would ignore.
    """
    _, *others = space.fidelities().flat() or [None]
    if others:
        raise ORION.refusal(str(others[0]), "a second fidelity")
    defaults = ORION.defaults(space)
    return {name: _prior(parameter, defaults) for name, parameter in ORION.parameters(space).items()}


def _prior(parameter: Parameter, defaults: Mapping[str, Value]) -> str:
    dimension = parameter.dimension
    # without precision=None Orion rounds reals to four digits, which can leave the range
    exact = "" if isinstance(dimension, Integer | Categorical | Fidelity) else ", precision=None"
    match dimension:
        case Real(low=low, high=high, log=log) | Integer(low=low, high=high, log=log):
            discrete = ", discrete=True" if isinstance(dimension, Integer) else ""
            text = f"{'loguniform' if log else 'uniform'}({low!r}, {high!r}{discrete}"
        case Normal(mean=mean, std=std, log=True):
            text = f"lognorm({std!r}, scale={math.exp(mean)!r}"
        case Normal(mean=mean, std=std):
            text = f"normal({mean!r}, {std!r}"
        case Fidelity(low=low, high=high, base=base):
            return f"fidelity({low!r}, {high!r}, {base!r})"
        case Categorical(values=values, weights=None):
            text = f"choices({list(values)!r}"
        case Categorical(values=values, weights=[*weights]):
            chances = {value: weight / sum(weights) for value, weight in zip(values, weights, strict=True)}
            text = f"choices({chances!r}"
        case _:
            raise ORION.refusal(parameter.name, f"a {type(dimension).__name__.lower()} dimension")
    return f"{text}{exact}{_default(parameter, defaults)})"


def _default(parameter: Parameter, defaults: Mapping[str, Value]) -> str:
    default, dimension = defaults.get(parameter.name), parameter.dimension
    if default is None:  # to Orion too, None is no default
        return ""
    if isinstance(dimension, Real) and isinstance(default, float) and not dimension.log:
        # Orion keeps low and high - low, whose sum can be below high by a rounding
        default = min(default, dimension.low + (dimension.high - dimension.low))
    return f", default_value={default!r}"
