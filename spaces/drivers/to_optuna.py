"""Conversion of spaces to Optuna's distributions and suggestions.

The parameters' names are those of `params`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from ..choices import Categorical
from ..ranges import Integer, Real
from ..space import Space
from ..values import Nested
from .params import Dialect, Parameter

OPTUNA = Dialect("Optuna", steps=True, fidelities=False, weights=False)
params = OPTUNA.encode  # the form that enqueue_trial and PartialFixedSampler take
from_params = OPTUNA.read  # gives back the values that `suggest` returned


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions by name, including conditional dimensions.

    Fidelities are left to the pruner.

    Raises:
        SpaceError: the space has normal priors, which Optuna lacks.
    """
    return {name: _distribution(parameter) for name, parameter in OPTUNA.parameters(space).items()}


def suggest(space: Space, trial: BaseTrial, fixed: Mapping[str, Any] | None = None) -> Nested:
    """Return values that an Optuna trial suggests.

    Only dimensions that apply are suggested. A fidelity takes its highest value.

    Args:
        space: the space.
        trial: Optuna's trial.
        fixed: values, nested or dotted or a `Space.structure`, that are not suggested but part of the result.
    """

    def ask(parameter: Parameter) -> object:
        match _distribution(parameter):
            case FloatDistribution(low=low, high=high, log=log, step=step):
                return trial.suggest_float(parameter.name, low, high, log=log, step=step)
            case IntDistribution(low=low, high=high, log=log, step=step):
                return trial.suggest_int(parameter.name, low, high, log=log, step=step)
            case CategoricalDistribution(choices=choices):
                return trial.suggest_categorical(parameter.name, choices)
        raise AssertionError(parameter)

    return OPTUNA.decode(space, ask, fixed)


def _distribution(parameter: Parameter) -> BaseDistribution:
    match parameter.dimension:
        case Real(low=low, high=high, log=log, step=step):
            return FloatDistribution(low, high, log=log, step=step)
        case Integer(low=low, high=high, log=log, step=step):
            return IntDistribution(low, high, log=log, step=step)
        case Categorical(values=values):
            return CategoricalDistribution([value for value in values if not isinstance(value, list)])
        case dimension:
            raise OPTUNA.refusal(parameter.name, f"a {type(dimension).__name__.lower()} prior")
