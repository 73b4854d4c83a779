"""Exploration of PBT: perturbs or resamples hyperparameters of a new branch.

Jaderberg et al. (2017), arXiv:1711.09846, multiply values by 1.2 or 0.8. Here the perturbation follows each dimension's
scale:

- log-uniform: the value is multiplied;
- near one: the distance 1 - value is multiplied;
- linear: the value moves by a tenth of the range, so it does not get stuck at zero;
- ordinal: the value moves to a neighbour.

Values stay within the searched range. Categories have no scale, so only resampling changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ...spaces import flatten
from ...spaces.choices import Ordinal
from ...spaces.dimension import Dimension, Maybe
from ...spaces.ranges import Integer, NearOne, Normal, Range, Real
from ...spaces.values import Value
from ...tasks.rng import streams
from ..study.config import Config

UP, DOWN = 1.2, 0.8
LINEAR = 0.1  # fraction of the range or standard deviation; as multiplying the middle of [0, high] by 1.2
ATTEMPTS = 20  # at a valid combination of values
Choose = Callable[[str, Dimension], Value]  # chooses the value of one hyperparameter
Check = Callable[[Mapping[str, Any]], object]  # raises ValueError for an invalid combination


def explore(
    config: Config, params: Mapping[str, Any], generation: int, member: int, check: Check = lambda values: None
) -> dict[str, Any]:
    """Return the hyperparameters of a new branch, by dotted name.

    They depend only on the study's configuration, the parent's hyperparameters, the generation and the member.

    Args:
        config: the study's configuration.
        params: hyperparameters of the parent.
        generation: the first generation in which the member trains.
        member: its index in the population.
        check: raises ValueError for an invalid combination of values; after 20 of them the parent's are returned.
    """

    def attempt(number: int) -> Choose:
        def choose(path: str, dimension: Dimension) -> Value:
            if path in params and path not in config.options["perturb"]:
                return params[path]
            key = streams.key(config.seed, "explore", generation, member, number, path)
            u = float(streams.uniform(key, 0)[0])
            if path not in params or config.options["explore"] == "resample":
                return dimension.at(u)
            return perturbed(dimension, params[path], up=u < 0.5)

        return choose

    return first_valid(config, attempt, params, check)


def first_valid(
    config: Config, attempt: Callable[[int], Choose], parent: Mapping[str, Any], check: Check
) -> dict[str, Any]:
    """Return the first choice that passes the check, else the parent's values."""
    for number in range(ATTEMPTS):
        values = {**config.fixed, **flatten(config.searched.decide(attempt(number)))}
        with suppress(ValueError):
            check(values)
            return values
    return dict(parent)


def perturbed(dimension: Dimension, value: Any, up: bool) -> Value:
    """Return the value one step up or down its dimension's scale."""
    if isinstance(dimension, Maybe):
        return None if value is None else perturbed(dimension.dimension, value, up)
    if isinstance(dimension, Ordinal):
        index, last = dimension.index(value, "the value"), len(dimension.values) - 1
        step = 1 if up else -1
        return dimension.after(index + step if 0 <= index + step <= last else max(0, min(index - step, last)))
    if isinstance(dimension, NearOne):
        return _within(dimension, 1 - (1 - value) * (UP if up else DOWN))
    if isinstance(dimension, Integer | Real):
        moved = _within(dimension, _moved(value, up, dimension.log, dimension.high - dimension.low))
        if dimension.step is None:
            return moved
        steps, before = (round((number - dimension.low) / dimension.step) for number in (moved, value))
        if steps == before:
            steps += 1 if up else -1
        return dimension.after(min(max(steps, 0), dimension.steps))
    if isinstance(dimension, Normal):
        return _moved(value, up, dimension.log, dimension.std)
    return value


def _moved(value: float, up: bool, log: bool, scale: float) -> float:
    if log:
        return value * (UP if up else DOWN)
    return value + scale * (LINEAR if up else -LINEAR)


def _within(dimension: Range, value: float) -> float:
    return min(max(value, dimension.low), dimension.high)
