"""Suggestions from the results of earlier studies.

Each earlier study is a source: a kernel ridge regression of its results' ranks, with interactions of up to three
hyperparameters. The ranks are transformed so that the best ones lie farthest apart. A source is weighted by how well
its predictions correlate with this study's results or, before there are any, with the other sources' predictions
(similar to RGPE: Feurer, Letham and Bakshy 2018). The weight of a source whose best configurations perform badly here
becomes negative.

The study's own results are another such regression, judged by leave-one-out predictions. A trial takes the
configuration with the highest weighted prediction. The less the weights exceed what chance gives, the more trials are
left to the study's own sampler; every fourth trial always is, which reveals misleading sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...spaces import Space, SpaceError, flatten, unflatten
from ...spaces.dimension import Dimension, Maybe
from ...spaces.drivers.to_optuna import params
from ...spaces.quantiles import has_scale, quantile
from ...tasks.rng import streams
from ..study.config import Config
from ..study.plan import ScoreHistory
from .registry import LEARNED

Array = NDArray[np.float64]
UNTIL = 64  # number of the first trial that ignores sources; the study's own results tell more by then
OWN = 4, 1  # trials with number % 4 == 1 are the sampler's own
UNSEEN = 4  # trials that follow the sources before the study has results
DRAWS = 32  # random candidates at most, besides the sources' configurations
LENGTH, RIDGE = 0.2, 0.1  # length scale of the kernel, and regularization
PRIOR, WEIGHT = 0.5, 2.0  # prior Fisher z of a source, and its inverse variance
VARIANCE = 1.06  # of Fisher's z of a rank correlation, times n - 3
SURE = 0.4  # weight beyond chance above which all trials follow, except the sampler's own
APART = 10.0  # distance between values without a scale


def follows(config: Config, number: int, results: int) -> bool:
    """Return whether a trial is chosen by the results of earlier studies.

    Args:
        config: the study's configuration.
        number: number of the trial.
        results: number of the study's results on which the choice may depend.
    """
    every, fresh = OWN
    if not config.options.get(LEARNED) or number >= UNTIL or number % every == fresh:
        return False
    return results >= every or sum(n % every != fresh for n in range(number)) < UNSEEN


def choose(
    config: Config,
    number: int,
    trials: Mapping[int, Mapping[str, Any]],
    history: ScoreHistory,
    check: Callable[[Mapping[str, Any]], object],
    violations: Mapping[int, float] = MappingProxyType({}),
) -> dict[str, Any] | None:
    """Return the best configuration by the weighted sources, or None.

    None leaves the trial to the study's own sampler.

    Args:
        config: the study's configuration.
        number: number of the trial.
        trials: hyperparameters of earlier trials, by dotted name.
        history: their scores, as far as the choice may depend on them.
        check: raises ValueError for an invalid combination of values.
        violations: how far their last results violate the study's constraints.

    Returns:
        Nested hyperparameters that no earlier trial has.
    """
    space, sources = config.searched, config.options[LEARNED]
    done = [n for n in history if history[n] and n < UNTIL and n in trials]
    done.sort(key=lambda n: (history[n][-1][0], -violations.get(n, 0.0), history[n][-1][1], n))  # from worst to best
    own_points = _points(space, [trials[n] for n in done])
    experts = [_Expert(_points(space, source["values"]), np.array(source["scores"])) for source in sources]
    known_points = np.concatenate([expert.points for expert in experts])
    trust = _trust(experts, known_points, own_points)
    if len(done) >= OWN[0]:
        share = (max(map(abs, trust)) ** 2 - _by_chance(len(done))) / SURE**2  # of trials that follow
        if np.random.default_rng(streams.seed_of(config.seed, "follow", number, 0)).random() >= share:
            return None
        experts.append(_Expert(own_points, _places(len(done))))
        trust.append(max(0.0, _trusted(experts[-1].left_out(), PRIOR)))
    draws = range(round(DRAWS ** max(map(abs, trust))))  # predictions that are trusted may leave what was tried
    drawn = [flatten(space.sample(streams.seed_of(config.seed, "learned", number, n))) for n in draws]
    candidates = [*(values for source in sources for values in source["values"]), *drawn]
    points = np.concatenate([known_points, _points(space, drawn)])
    expected = sum(weight * expert.predict(points) for weight, expert in zip(trust, experts, strict=True))
    best_first = [candidates[index] for index in np.argsort(-np.asarray(expected), kind="stable")]
    return _first_new(space, best_first, trials.values(), check)


def _first_new(
    space: Space,
    candidates: Iterable[Mapping[str, Any]],
    trials: Iterable[Mapping[str, Any]],
    check: Callable[[Mapping[str, Any]], object],
) -> dict[str, Any] | None:
    """Return the first valid candidate that no trial has; None without one."""
    points = [_searched(space, values) for values in trials]
    for candidate in candidates:
        values = _searched(space, candidate)
        nested = None if values in points else _valid(space, values, check)
        if nested is not None and _searched(space, flatten(nested)) not in points:  # defaults may have been filled in
            return nested
    return None


class _Expert:
    """Kernel ridge regression of results on points.

    Args:
        points: (N, D), see `_points`.
        places: (N,) normalized ranks of the results, from 0 for the worst to below 1 for the best.
    """

    def __init__(self, points: Array, places: Array):
        self.points = points
        self._values = _standard(-np.log1p(-places))  # exponential quantiles spread the best ones
        self._inverse = np.linalg.inv(_kernel(points, points) + RIDGE * np.eye(len(points)))
        self._weights = self._inverse @ self._values

    def predict(self, points: Array) -> Array:
        """Return the predicted values (M,) of points (M, D)."""
        expected: Array = _kernel(points, self.points) @ self._weights
        return expected

    def left_out(self) -> Array:
        """Return the leave-one-out prediction of each result, (N,)."""
        expected: Array = self._values - self._weights / np.diag(self._inverse)
        return expected


def _trust(experts: Sequence[_Expert], points: Array, scores: Array) -> list[float]:
    """Return the weight of each source, from -1 to 1.

    Args:
        experts: one regression per source.
        points: points of all sources, at which the sources are compared with each other.
        scores: points of this study's results, from worst to best.
    """
    predictions = np.array([expert.predict(points) for expert in experts])
    weights = []
    for n, expert in enumerate(experts):
        others = [_z(predictions[n], prediction) for m, prediction in enumerate(predictions) if m != n]
        prior = sum(others) / len(others) if others else PRIOR
        weights.append(_trusted(expert.predict(scores), prior))
    return weights


def _trusted(predicted: Array, prior: float) -> float:
    """Return the weight of predictions for results in ascending order.

    It is the posterior correlation of predictions and ranks; a negative one inverts the predictions.
    """
    pairs = len(predicted)
    weight = _precision(pairs)
    z = _z(predicted, _places(pairs)) if weight else 0.0
    return math.tanh((z * weight + prior * WEIGHT) / (weight + WEIGHT))


def _precision(pairs: int) -> float:
    """Return the inverse variance of Fisher's z of rank correlations."""
    return max(pairs - 3, 0.5) / VARIANCE if pairs >= 3 else 0.0


def _by_chance(pairs: int) -> float:
    """Return the mean square of the weight of uninformative predictions."""
    precision = _precision(pairs)
    return precision / (precision + WEIGHT) ** 2


def _z(one: Array, other: Array) -> float:
    """Return Fisher's z of the correlation, 0 if either side is constant."""
    return float(np.arctanh(np.clip(np.mean(_standard(one) * _standard(other)), -0.99, 0.99)))


def _standard(values: Array) -> Array:
    apart: Array = values - values.mean() if len(values) else values
    return apart / (apart.std() or 1.0) if len(values) else apart


def _places(count: int) -> Array:
    """Return the normalized ranks of ascending results, in (0, 1)."""
    return (np.arange(count) + 0.5) / max(1, count)


def _kernel(one: Array, other: Array) -> Array:
    """Return similarities (N, M) of points (N, D) and (M, D).

    The mean over hyperparameters adds up their main effects, its cube interactions of up to three (compare additive
    Gaussian processes: Duvenaud, Nickisch and Rasmussen 2011).
    """
    similar: Array = np.exp(-np.square((one[:, None] - other[None]) / LENGTH) / 2).mean(-1) ** 3
    return similar


def _points(space: Space, configurations: Sequence[Mapping[str, Any]]) -> Array:
    """Return configurations as points (N, D).

    A missing value, or one without a scale, is far from all others.
    """
    searched = space.unfixed()
    rows = [[_coordinate(searched[name], values.get(name)) for name in searched] for values in configurations]
    return np.array(rows, float).reshape(len(rows), len(searched))


def _coordinate(dimension: Dimension, value: Any) -> float:
    inner = dimension.dimension if isinstance(dimension, Maybe) else dimension
    if value is None:
        return -APART
    if has_scale(inner):
        try:
            return quantile(inner, value)
        except (SpaceError, TypeError, ValueError):  # the source searched another range
            return -2 * APART
    choices = list(getattr(inner, "values", ()))
    return APART * (1 + choices.index(value) if value in choices else -3)


def _searched(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in space.unfixed() if name in values}


def _valid(
    space: Space, values: Mapping[str, Any], check: Callable[[Mapping[str, Any]], object]
) -> dict[str, Any] | None:
    """Return a source's configuration in this space, None if it is invalid."""
    try:
        nested = space.decide(lambda path, dimension: values.get(path, dimension.default))
        params(space, flatten(nested))
        check(nested)
    except (SpaceError, ValueError):
        return None
    return unflatten(flatten(nested))
