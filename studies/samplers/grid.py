"""Grid search: trial n is one of all points.

The study's seed decides the order of the points.

Optuna's sampler wants a list of values for each hyperparameter and combines all of them, whether they apply or not.
Here the lists come from the space (all values of a categorical or an ordinal; of a range `grid_points` values, spread
evenly, on its logarithm if it has one, with both ends), and only values that apply are combined: a momentum for SGD
alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import log, prod
from typing import Any, cast

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import BaseTrial, FrozenTrial

from ...spaces import Space
from ...spaces.choices import Ordinal
from ...spaces.dimension import Maybe
from ...spaces.drivers.to_optuna import distributions, suggest
from ...spaces.space import ENABLED
from ...tasks.rng import streams
from ..study.config import BadConfig, Config

POINTS = 5  # of a range, unless --grid-points says otherwise
MOST = 10_000  # points in all

Point = Mapping[str, Any]


class Grid(BaseSampler):
    """The sampler of one trial.

    Trials beyond the last point begin with the first one again.
    """

    def __init__(self, config: Config, number: int, attempt: int):
        points = grid(config)
        self.point = points[(number + attempt) % len(points)]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return nothing: each hyperparameter is asked for when it applies."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the point's value."""
        return self.point[param_name]


def points_of(config: Config) -> int:
    """Return the number of values that the study takes of a range."""
    return int(config.options.get("grid_points", POINTS))


def grid(config: Config) -> Sequence[Point]:
    """Return all points as Optuna's parameters, in the order of the trials.

    Raises:
        BadConfig: the grid has too many points.
    """
    return _grid(json.dumps(dict(config.space)), points_of(config), config.seed)


@lru_cache(maxsize=4)
def _grid(priors: str, count: int, seed: int) -> Sequence[Point]:
    space = Space.from_priors(json.loads(priors))
    sizes = _sizes(space, count)
    always = [sizes[row.path] for row in space.rows if not row.conditions and row.path in sizes]
    points = list(islice(_walk(space, count), MOST + 1)) if prod(always) <= MOST else []
    if not 0 < len(points) <= MOST:
        most = sorted((name for name in sizes if sizes[name] > 1), key=lambda name: -sizes[name])
        largest = ", ".join(f"{sizes[name]} of {name}" for name in most[:5])
        largest += f" and those of {len(most) - 5} others" if len(most) > 5 else ""
        raise BadConfig(
            f"a grid has at most {MOST:,} points, but {largest} make more; search "
            "fewer of them (--search NAME), or take fewer --grid-points"
        )
    random.Random(streams.seed_of(seed, "suggest", "grid")).shuffle(points)
    return points


def _sizes(space: Space, count: int) -> dict[str, int]:
    """Return the number of values of each dimension, None included."""
    sizes: dict[str, int] = {}
    for name, distribution in distributions(space).items():
        path, count_of = _path(space, name), len(values(distribution, count, name in _ordinals(space)))
        sizes[path] = sizes.get(path, 0) + (1 if name == path + ENABLED else count_of)
    return sizes


def _path(space: Space, name: str) -> str:
    """Return the dimension of one of Optuna's parameters (see spaces/drivers/params.py)."""
    for ending in ("", ENABLED, ".index", ".value", ".value.index"):
        for path in (name.removesuffix(ending), name.removesuffix(ending).replace("one_minus_", "")):
            if name.endswith(ending) and path in space.flat():
                return path
    raise AssertionError(name)


def _ordinals(space: Space) -> set[str]:
    """Return the parameters whose values were all listed."""
    names = set()
    for path, dimension in space.flat().items():
        each = dimension.dimension if isinstance(dimension, Maybe) else dimension
        if isinstance(each, Ordinal):
            names.add(f"{path}{'.value' if isinstance(dimension, Maybe) else ''}.index")
    return names


def _walk(space: Space, count: int) -> Iterator[Point]:
    """Yield points with the hyperparameters that apply.

    It asks for the space's values again and again.
    """
    unfinished: list[Point] = [{}]
    ordinals = _ordinals(space)
    while unfinished:
        point = unfinished.pop()
        try:
            suggest(space, cast(BaseTrial, _Asked(point)))
        except _Unknown as missing:
            choices = values(missing.distribution, count, missing.name in ordinals)
            unfinished += [{**point, missing.name: value} for value in reversed(choices)]
        else:
            yield point


class _Unknown(Exception):
    def __init__(self, name: str, distribution: BaseDistribution):
        super().__init__(name)
        self.name, self.distribution = name, distribution


class _Asked:
    """A stand-in for a trial of Optuna's at a point.

    It has the hyperparameters of the point, which may be unfinished.
    """

    def __init__(self, point: Point):
        self._point = point

    def _value(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self._point:
            raise _Unknown(name, distribution)
        return self._point[name]

    def suggest_float(self, name: str, low: float, high: float, **more: Any) -> Any:
        return self._value(name, FloatDistribution(low, high, **more))

    def suggest_int(self, name: str, low: int, high: int, **more: Any) -> Any:
        return self._value(name, IntDistribution(low, high, **more))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._value(name, CategoricalDistribution(choices))


def values(distribution: BaseDistribution, count: int, whole: bool = False) -> list[Any]:
    """Return the grid's values of one hyperparameter, rising.

    They are all values, or `count` of a range with more.
    """
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    spread = np.exp(np.linspace(log(low), log(high), count)) if distribution.log else np.linspace(low, high, count)
    if step is None:
        floats = [float(value) for value in spread]
        return [low, *floats[1:-1], high]  # the ends as they are, whatever the logarithm made of them
    last = round((high - low) / step)
    if whole or last < count:
        return [low + index * step for index in range(last + 1)]
    return [low + index * step for index in dict.fromkeys(round((value - low) / step) for value in spread)]
