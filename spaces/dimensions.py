"""Words of the search-space language: each creates a dimension.

    gamma=near_one(0.9, 0.9999, default=0.99)
    num_steps=ordinal(32, 64, 128, 256, default=128, structural=True)
    momentum=real(0.0, 0.99, default=0.0, when={"name": "sgd"})

Every word also accepts:

- default: value that `Space.validate` fills in. Without one, the hyperparameter must be given.
- structural: the value determines shapes or loop counts. Trials can train as one cohort only if they agree in it, and
  population-based training must not change it.
- search: False if a user may set the value but no study searches it; this needs a default.
- silent: with search=False, omit the value from `Space.identifying` when it is the default, as if the dimension did not
  exist. Use it for a new dimension, so that existing results keep their uids.
- when: {name: value or tuple of values}; the dimension applies only if the named one has such a value. Names are looked
  up in the same group first, then in the enclosing ones; dotted names go down. The named dimension must be declared
  earlier.
- help: a sentence for people: what the hyperparameter does, when to raise it, its names elsewhere.

Ranges of numbers, and ordinals of numbers, also accept:

- accept: (low, high), a wider range that a user may choose from but no study searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from .choices import Argument, Categorical, Entry, Fixed, Ordinal
from .dimension import Dimension, Maybe
from .ranges import Bounds, Curve, Fidelity, Integer, NearOne, Normal, Real, Sizes


class Common(TypedDict, total=False):
    """Keyword arguments of every word."""

    default: Any
    structural: bool
    search: bool
    silent: bool
    when: Mapping[str, Any]
    help: str


def real(
    low: float, high: float, *, step: float | None = None, accept: Bounds | None = None, **common: Unpack[Common]
) -> Real:
    """Return a float dimension, uniform in [low, high].

    Args:
        low: lower bound.
        high: upper bound.
        step: if given, the values are low, low + step, ..., high.
        accept: wider range that a user may choose from.
        common: see the module.
    """
    return Real(low=low, high=high, step=step, accept=accept, **common)


def log_real(low: float, high: float, *, accept: Bounds | None = None, **common: Unpack[Common]) -> Real:
    """Return a float dimension, log-uniform in [low, high].

    Args:
        low: lower bound, above 0.
        high: upper bound.
        accept: wider range that a user may choose from.
        common: see the module.
    """
    return Real(low=low, high=high, log=True, accept=accept, **common)


def near_one(low: float, high: float, *, accept: Bounds | None = None, **common: Unpack[Common]) -> NearOne:
    """Return a float dimension in [0.5, 1), log-uniform in 1 - x.

    Drivers search it as `one_minus_<name>`.

    Args:
        low: lower bound.
        high: upper bound, below 1.
        accept: wider range that a user may choose from.
        common: see the module.
    """
    return NearOne(low=low, high=high, accept=accept, **common)


def normal(mean: float, std: float, **common: Unpack[Common]) -> Normal:
    """Return a normally distributed float dimension.

    Args:
        mean: mean.
        std: standard deviation.
        common: see the module.
    """
    return Normal(mean=mean, std=std, **common)


def lognormal(mean: float, std: float, **common: Unpack[Common]) -> Normal:
    """Return a float dimension above 0 whose logarithm is normally distributed.

    Args:
        mean: mean of the logarithm.
        std: standard deviation of the logarithm.
        common: see the module.
    """
    return Normal(mean=mean, std=std, log=True, **common)


def integer(
    low: int,
    high: int,
    *,
    log: bool = False,
    step: int = 1,
    accept: tuple[int, int] | None = None,
    **common: Unpack[Common],
) -> Integer:
    """Return an int dimension, uniform or (log) log-uniform in [low, high].

    Args:
        low: lower bound.
        high: upper bound.
        log: whether the prior is log-uniform.
        step: the values are low, low + step, ..., high.
        accept: wider range that a user may choose from.
        common: see the module.
    """
    return Integer(low=low, high=high, log=log, step=step, accept=accept, **common)


def ordinal(*values: Any, accept: Bounds | None = None, **common: Unpack[Common]) -> Ordinal:
    """Return a dimension of ordered values.

    Drivers search the index, as `<name>.index`.

    Args:
        values: None, numbers, strings or lists, in order.
        accept: range of further numbers that a user may choose from.
        common: see the module.
    """
    return Ordinal(values=values, accept=accept, **common)


def categorical(*values: Any, weights: Sequence[float] | None = None, **common: Unpack[Common]) -> Categorical:
    """Return a dimension of unordered values.

    Args:
        values: None, booleans, numbers, strings or lists.
        weights: relative probabilities of the values; None for equal ones.
        common: see the module.
    """
    return Categorical(values=values, weights=weights, **common)


def fidelity(low: int, high: int, base: int = 2, **common: Unpack[Common]) -> Fidelity:
    """Return the fidelity: a dimension that sets the cost of a trial.

    Its values are low, low * base, low * base**2, ..., and high. The default is high unless given, and samples are
    always high.

    Args:
        low: smallest cost.
        high: largest cost.
        base: factor between two values.
        common: see the module.
    """
    return Fidelity(low=low, high=high, base=base, **common)


def curve(low: float, high: float, *, default: Any, when: Mapping[str, Any] | None = None, help: str = "") -> Curve:
    """Return a dimension of piecewise linear functions.

    It is structural and never searched. A value is a list of points [[x, y], ...].

    Args:
        low: smallest y.
        high: largest y.
        default: default points.
        when: see the module.
        help: see the module.
    """
    return Curve(low=low, high=high, default=default, when=when or {}, help=help)


def sizes(low: int, high: int, **common: Unpack[Common]) -> Sizes:
    """Return a dimension of lists of 1 to 16 integers.

    The default is None. The dimension is structural, and searched only if a user gives it a prior.

    Args:
        low: smallest integer.
        high: largest integer.
        common: see the module.
    """
    return Sizes(low=low, high=high, **common)


def argument(**common: Unpack[Common]) -> Argument:
    """Return a dimension of any data, the default None.

    It is structural, and searched only if a user gives it a prior.

    Args:
        common: see the module.
    """
    return Argument(**common)


def entry(*values: Any, group: str, **common: Unpack[Common]) -> Entry:
    """Return a dimension of names and of classes, "package.module:Class(argument=1)".

    Args:
        values: the built-in names.
        group: entry-point group in which packages offer further names.
        common: see the module.
    """
    return Entry(values=values, group=group, **common)


def fixed(value: Any, **common: Unpack[Common]) -> Fixed:
    """Return a dimension with a single value; drivers do not see it."""
    return Fixed(values=(value,), **common)


def maybe(dimension: Dimension, **common: Unpack[Common]) -> Maybe:
    """Return a dimension whose value is None or a value of `dimension`.

    Drivers search `<name>.enabled` and `<name>.value`. Whether the value is None is structural.
    """
    return Maybe(dimension=dimension, **common)
