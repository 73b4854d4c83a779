"""Quantiles of values under their dimensions' priors."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from .choices import Ordinal
from .dimension import Dimension
from .ranges import Integer, NearOne, Normal, Real

LAST = 1 - 2.0**-53  # below 1


def has_scale(dimension: Dimension) -> bool:
    """Return whether the dimension's values are ordered.

    Only then can two values be near each other.
    """
    return isinstance(dimension, Real | Integer | NearOne | Normal | Ordinal)


def quantile(dimension: Dimension, value: Any) -> float:
    """Return a quantile u in [0, 1) of a value.

    ``dimension.at(u)`` gives the value back, or the closest bound. If a value owns a whole interval of quantiles
    (steps, integers, ordinals), u is inside it.

    Raises:
        TypeError: the dimension has no scale.
    """
    match dimension:
        case NearOne():
            u = quantile(dimension.distance, 1 - value)
        case Ordinal(values=values):
            u = (dimension.index(value, "the value") + 0.5) / len(values)
        case Integer(log=True, low=low, high=high):
            u = _between(math.log(value), math.log(low - 0.5), math.log(high + 0.5)) if value > 0 else 0.0
        case Integer(low=low, step=step) | Real(low=low, step=float() as step):
            u = (round((value - low) / step) + 0.5) / (dimension.steps + 1)
        case Real(log=True, low=low, high=high):
            u = _between(math.log(value), math.log(low), math.log(high)) if value > 0 else 0.0
        case Real(low=low, high=high):
            u = _between(value, low, high)
        case Normal(mean=mean, std=std, log=log):
            u = NormalDist(mean, std).cdf(math.log(value) if log else value)
        case _:
            raise TypeError(f"only a dimension with a scale has quantiles, but got {dimension}")
    return min(max(u, 0.0), LAST)


def _between(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)
