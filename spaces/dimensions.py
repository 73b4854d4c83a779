"""Words of the search-space language: type, range, prior and default.

    gamma=near_one(0.9, 0.9999, default=0.99)
    num_steps=ordinal(32, 64, 128, 256, default=128, structural=True)
    momentum=real(0.0, 0.99, default=0.0, when={"name": "sgd"})

Every word also takes

- default: what `Space.validate` fills in; without one the hyperparameter must be given.
- structural: the value decides shapes or loop counts. Only trials that agree in it can train as one cohort, and
  population-based training must leave it alone.
- search: False for what a user may set but no study searches; it needs a default.
- silent: with search=False, leaves the value out of what `Space.identifying` gives where it is the default, as if there
  were no such dimension. For one that came later, so that what has nothing of it keeps its name.
- when: {name: value, or tuple of values}: the dimension exists only beside these values. A name is looked up beside
  the dimension first, then further out; dotted names go down. What is named must be declared above.

and ranges of numbers, and ordinals of numbers

- accept: (low, high), a wider range that a user may choose from although a study does not search there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from .choices import Categorical, Entry, Fixed, Ordinal
from .dimension import Dimension, Maybe
from .ranges import Bounds, Curve, Fidelity, Integer, NearOne, Normal, Real, Sizes


class Common(TypedDict, total=False):
    """Arguments of every word."""

    default: Any
    structural: bool
    search: bool
    silent: bool
    when: Mapping[str, Any]


def real(
    low: float, high: float, *, step: float | None = None, accept: Bounds | None = None, **common: Unpack[Common]
) -> Real:
    """Return a float dimension, uniform in [low, high].

    `step` makes it one of low, low + step, ..., high.
    """
    return Real(low=low, high=high, step=step, accept=accept, **common)


def log_real(low: float, high: float, *, accept: Bounds | None = None, **common: Unpack[Common]) -> Real:
    """Return a float dimension, log-uniform in [low, high]."""
    return Real(low=low, high=high, log=True, accept=accept, **common)


def near_one(low: float, high: float, *, accept: Bounds | None = None, **common: Unpack[Common]) -> NearOne:
    """Return a float dimension in [0.5, 1), log-uniform in 1 - x.

    Drivers search `one_minus_<name>`.
    """
    return NearOne(low=low, high=high, accept=accept, **common)


def normal(mean: float, std: float, **common: Unpack[Common]) -> Normal:
    """Return a float dimension, normally distributed."""
    return Normal(mean=mean, std=std, **common)


def lognormal(mean: float, std: float, **common: Unpack[Common]) -> Normal:
    """Return a float dimension above 0 with a normally distributed logarithm."""
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

    `step` makes it one of low, low + step, ..., high.
    """
    return Integer(low=low, high=high, log=log, step=step, accept=accept, **common)


def ordinal(*values: Any, accept: Bounds | None = None, **common: Unpack[Common]) -> Ordinal:
    """Return a dimension of `values` (None, numbers, strings, lists) in order.

    Drivers search the index, `<name>.index`.
    """
    return Ordinal(values=values, accept=accept, **common)


def categorical(*values: Any, weights: Sequence[float] | None = None, **common: Unpack[Common]) -> Categorical:
    """Return a dimension of `values` without order; `weights` are relative."""
    return Categorical(values=values, weights=weights, **common)


def fidelity(low: int, high: int, base: int = 2, **common: Unpack[Common]) -> Fidelity:
    """Return the fidelity, which is the cost of a trial.

    It is one of low, low * base, ..., and high. Its default, and every sample of it, is high.
    """
    return Fidelity(low=low, high=high, base=base, **common)


def curve(low: float, high: float, *, default: Any, when: Mapping[str, Any] | None = None) -> Curve:
    """Return a dimension of piecewise linear functions.

    A value is points [[x, y], ...] with y in [low, high]. The dimension is structural, and never searched.
    """
    return Curve(low=low, high=high, default=default, when=when or {})


def sizes(low: int, high: int, **common: Unpack[Common]) -> Sizes:
    """Return a dimension of lists of integers in [low, high].

    None is its default. It is structural, and searched only by a prior of one's own.
    """
    return Sizes(low=low, high=high, **common)


def entry(*values: Any, group: str, **common: Unpack[Common]) -> Entry:
    """Return a dimension of names and of "package.module:Class(argument=1)".

    `group` is the entry-point group in which packages offer further names.
    """
    return Entry(values=values, group=group, **common)


def fixed(value: Any, **common: Unpack[Common]) -> Fixed:
    """Return a dimension with this value only; drivers do not see it."""
    return Fixed(values=(value,), **common)


def maybe(dimension: Dimension, **common: Unpack[Common]) -> Maybe:
    """Return a dimension of None and the values of `dimension`.

    Drivers search `<name>.enabled` and `<name>.value`. Being None is structural.
    """
    return Maybe(dimension=dimension, **common)
