"""Grid search: trial n takes the n-th point of a shuffled grid.

The study's seed determines the order of the points.

Optuna's sampler needs a list of values per hyperparameter and combines all of them, including those that do not apply.
Here the lists come from the space: all values of a categorical or an ordinal, and `grid_points` evenly spaced values of
a range (on its scale, including both ends). Only values that apply are combined: momentum with SGD alone, for example.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import log
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from ...spaces import Space
from ...spaces.choices import Choice
from ...spaces.conditions import Row
from ...spaces.dimension import Dimension, Maybe
from ...spaces.drivers.to_optuna import distributions, params
from ...spaces.ranges import Integer, NearOne, Real
from ...spaces.values import Value
from ...tasks.rng import streams
from ..errors import BadConfig
from ..options.entries import MOST_GRID_POINTS
from ..study.config import Config
from .draw import Draw

POINTS = 5  # per range, unless --grid-points is given
MOST = 10_000  # points in the grid

Point = Mapping[str, Value]


class Grid(BaseSampler):
    """Grid sampler of a single trial.

    Trials beyond the last point start again with the first.
    """

    exhausted = (
        "a grid is trained once, but it has {points} points for {trials} trials; leave --trials out, or take more "
        "--grid-points"
    )

    def __init__(self, config: Config, number: int, attempt: int):
        points = grid(config)
        self.params = params(config.searched, points[(number + attempt) % len(points)])

    @classmethod
    def of(cls, draw: Draw) -> Grid:
        """Return the sampler of a draw."""
        return cls(draw.config, draw.number, draw.attempt)

    @staticmethod
    def check(config: Config) -> None:
        """Raise BadConfig if the grid has too many or too few points."""
        if not 2 <= points_of(config) <= MOST_GRID_POINTS:
            raise BadConfig(
                "a grid has both ends of a range, so --grid-points must be at least 2 and at most "
                f"{MOST_GRID_POINTS:,}, but got {points_of(config)}"
            )
        grid(config)

    @classmethod
    def size(cls, config: Config, most: int) -> int:
        """Return the number of points of the study's grid."""
        cls.check(config)
        return len(grid(config))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return an empty space: Optuna then asks for each hyperparameter that applies."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return no values."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the point's value."""
        return self.params[param_name]


def points_of(config: Config) -> int:
    """Return the number of values that a range contributes to the grid."""
    return int(config.options.get("grid_points", POINTS))


def grid(config: Config) -> Sequence[Point]:
    """Return all points by dotted name, in the order of the trials.

    Raises:
        BadConfig: the grid has too many points.
    """
    return _grid(json.dumps(dict(config.space)), points_of(config), config.seed)


@lru_cache(maxsize=4)
def _grid(priors: str, count: int, seed: int) -> Sequence[Point]:
    space = Space.from_priors(json.loads(priors))
    distributions(space)  # raises for dimensions that Optuna cannot express
    values = {row.path: _values(row.dimension, count) for row in space.rows}
    points: list[Point] = [{}]
    for row in space.rows:
        points = list(islice(_extended(points, row, values[row.path]), MOST + 1))
    if len(points) > MOST:
        most = sorted((name for name in values if len(values[name]) > 1), key=lambda name: -len(values[name]))
        largest = ", ".join(f"{len(values[name])} of {name}" for name in most[:5])
        largest += f" and those of {len(most) - 5} others" if len(most) > 5 else ""
        raise BadConfig(
            f"a grid has at most {MOST:,} points, but {largest} make more; search "
            "fewer of them (--search NAME), or take fewer --grid-points"
        )
    random.Random(streams.seed_of(seed, "suggest", "grid")).shuffle(points)
    return points


def count_points(space: Space, most: int) -> int:
    """Return the number of points of a finite space, or `most`."""
    points: Iterable[Point] = [{}]
    for row in space.rows:
        points = _extended(points, row, _first_values(row.dimension, most))
    return sum(1 for _ in islice(points, most))


def _first_values(dimension: Dimension, most: int) -> Sequence[Value]:
    """Return all values of a dimension, or `most` of more."""
    match dimension:
        case Maybe():
            return [None, *_first_values(dimension.dimension, most)]
        case Choice():
            return dimension.values
    assert isinstance(dimension, Real | Integer)
    return [dimension.after(index) for index in range(min(dimension.steps + 1, most))]


def _extended(points: Iterable[Point], row: Row, values: Sequence[Value]) -> Iterator[Point]:
    """Yield each point with each value of one more dimension."""
    for point in points:
        if row.applies(point):
            yield from ({**point, row.path: value} for value in values)
        else:
            yield point


def _values(dimension: Dimension, count: int) -> Sequence[Value]:
    """Return the grid's values of one dimension."""
    match dimension:
        case Maybe():
            return [None, *_values(dimension.dimension, count)]
        case Choice():
            return dimension.values
        case NearOne():
            return [1 - value for value in _spread(dimension.distance, count)]
    assert isinstance(dimension, Real | Integer)
    return _spread(dimension, count)


def _spread(dimension: Real | Integer, count: int) -> Sequence[float]:
    """Return `count` evenly spaced values of a range, ascending.

    A range with fewer steps contributes all its values.
    """
    low, high, step = dimension.low, dimension.high, dimension.step
    spread = np.exp(np.linspace(log(low), log(high), count)) if dimension.log else np.linspace(low, high, count)
    if step is None:
        return [low, *spread[1:-1].tolist(), high]  # exact ends; exp(log(low)) may differ from low
    if dimension.steps < count:
        return [dimension.after(index) for index in range(dimension.steps + 1)]
    return [dimension.after(index) for index in dict.fromkeys(round((value - low) / step) for value in spread)]
