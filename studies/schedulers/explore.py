"""Exploration of a population: hyperparameters that change while a member trains.

Jaderberg et al. (2017), arXiv:1711.09846, multiply by 1.2 or 0.8. Here that happens on each dimension's scale: a
log-uniform value is multiplied; near one, its distance from one is; on a linear scale a value moves by a tenth of the
range, which is the same for a value in its middle and does not stick at zero; an ordinal moves to a neighbour. Values
stay within the range that is searched. Categories have no scale: only resampling changes them.
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
LINEAR = 0.1  # of a range, or of a standard deviation: half of 1.2 - 1
ATTEMPTS = 20  # at values that go together
Choose = Callable[[str, Dimension], Value]  # the value of one hyperparameter
Check = Callable[[Mapping[str, Any]], object]  # raises ValueError for values that do not go together


def explore(
    config: Config, params: Mapping[str, Any], generation: int, member: int, check: Check = lambda values: None
) -> dict[str, Any]:
    """Return the hyperparameters of a new branch, by dotted name.

    They are a function of the study's configuration, of `params`, and of the generation and the member.

    Args:
        config: the study's.
        params: those of the parent.
        generation: the first that the member trains in.
        member: its place in the population.
        check: raises ValueError for values that do not go together; after 20 such changes nothing is changed.
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
    """Return the first choice that passes the check, or the parent's."""
    for number in range(ATTEMPTS):
        values = {**config.fixed, **flatten(config.searched.decide(attempt(number)))}
        with suppress(ValueError):
            check(values)
            return values
    return dict(parent)


def perturbed(dimension: Dimension, value: Any, up: bool) -> Value:
    """Return the value one step further up or down its dimension's scale."""
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
        steps, before = (round((each - dimension.low) / dimension.step) for each in (moved, value))
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
