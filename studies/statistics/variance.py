"""Variance decomposition: how much each hyperparameter, and each pair, explains.

    share of x = Var_x(E[score | x]) / Var(score)

over the configurations that were tried. Intervals come from an additive linear model, fitted by least squares to terms
of each hyperparameter, whose explained variance is corrected for noise (Hays's omega squared); configurations are
resampled. With fewer than two configurations for each term of that model, each hyperparameter's share comes from a
model of its terms alone, and the intervals are wide. A pair's share is what the products of its hyperparameters' terms
explain beyond the additive model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .aggregates import Floats, power_of_two
from .estimates import Interval
from .intervals import CONFIDENCE

Indices = NDArray[np.intp]
LEVELS = 6  # a hyperparameter with at most six values has indicator terms; others have polynomials
DEGREE = 3  # of the polynomials
CONFIGURATIONS_PER_TERM = 2  # of one model of all hyperparameters; with fewer, each has a model of its own
ROWS_PER_TERM = 3  # at least; with fewer rows the model has fewer terms
REPETITIONS = 200  # bootstrap resamples
MOST_CLUSTERS = 1000  # resampled units; with more configurations, several share one
MOST_PAIRS = 5  # reported pairs
GRID = 9  # values of a hyperparameter at which a model is evaluated
RIDGE = 1e-8  # regularization of the least squares
NOTHING = Interval(0.0, 0.0, 0.0)
OFF = -math.inf  # in a column: the hyperparameter applies, and its value is None, which has no place among the others


@dataclass(frozen=True)
class Decomposition:
    """Shares, effects and pairs of columns, with 95% intervals.

    Attributes:
        shares: each column's share of the variance.
        effects: for each column, pairs (value, effect): how far scores with this value lie above their rung's mean,
            with the other columns held fixed; empty for too few configurations.
        pairs: (column, column, share), the share that the two explain together beyond the additive model; largest
            first.
    """

    shares: Sequence[Interval]
    effects: Sequence[Sequence[tuple[float, Interval]]]
    pairs: Sequence[tuple[int, int, Interval]]


def decompose(columns: Sequence[Floats], scores: Floats, groups: Indices, blocks: Indices) -> Decomposition:
    """Return the shares, effects and pairs of hyperparameters.

    Args:
        columns: each hyperparameter's values (rows,), as ranks or indices of levels; OFF where the value is None, NaN
            where it does not apply.
        scores: (rows,).
        groups: configuration of each row (rows,), the unit of resampling.
        blocks: rung of each row (rows,), whose mean score is subtracted.
    """
    scale = power_of_two(scores)  # division by it is exact; squares of huge results would overflow
    scores = _without_blocks(scores / scale, blocks)
    if not len(scores) or not scores.any():
        return Decomposition([NOTHING for _ in columns], [[] for _ in columns], [])
    products = _products(columns)
    room = max((product.shape[1] for product in products.values()), default=0)
    sure = lambda d: _size(columns, d) * CONFIGURATIONS_PER_TERM <= len(np.unique(groups))  # noqa: E731
    fits = lambda d, more: sure(d) and (_size(columns, d) + more) * ROWS_PER_TERM <= len(scores)  # noqa: E731
    paired = fits(1, room)
    degree = next((d for d in range(DEGREE, 1, -1) if fits(d, room if paired else 0)), 1)
    bases = [_terms(column, degree) for column in columns]
    largest = _largest(bases, products, scores) if paired else []
    drawn, together = _resampled(groups), sure(1)
    moments = _Moments(bases, [products[pair] for pair in largest], scores, drawn)
    additive = moments.shares() if together else _shares_alone(bases, scores, drawn)
    return Decomposition(
        [_interval(share) for share in np.clip(additive, 0, 1).T],
        [
            [(value, _interval(scale * moments.effect(index, at))) for value, at in _places(column)] if together else []
            for index, column in enumerate(columns)
        ],
        [(*pair, _interval(np.clip(moments.beyond(index), 0, 1))) for index, pair in enumerate(largest)],
    )


def _shares_alone(bases: Sequence[Floats], scores: Floats, resampled: tuple[Indices, Floats]) -> Floats:
    """Return the share of each column (draws, columns), modelled alone."""
    return np.concatenate([_Moments([basis], [], scores, resampled).shares() for basis in bases], 1)


def _without_blocks(scores: Floats, blocks: Indices) -> Floats:
    """Subtract the mean of their block from scores."""
    sums, counts = np.bincount(blocks, scores), np.bincount(blocks)
    result: Floats = scores - (sums / np.maximum(counts, 1))[blocks]
    return result


def _size(columns: Sequence[Floats], degree: int) -> int:
    return sum(_terms(column, degree).shape[1] for column in columns)


def _terms(column: Floats, degree: int) -> Floats:
    """Return a column's terms (rows, terms), zero where it does not apply.

    One more term tells OFF from all other values.
    """
    active = np.isfinite(column)
    levels = np.unique(column[active])
    basis: NDArray[Any] = np.zeros((len(column), 0))
    if 1 < len(levels) <= LEVELS:
        basis = (column[:, None] == levels[None, 1:]).astype(float)
    elif len(levels) > LEVELS:
        low, high = levels[0], levels[-1]
        position = np.where(active, (column - low) / (high - low) * 2 - 1, 0.0)
        basis = np.polynomial.legendre.legvander(position, degree)[:, 1:]
    if active.any():
        basis = np.where(active[:, None], basis - basis[active].mean(0), 0.0)
    applies = active | (column == OFF)
    if active.any() and not active[applies].all():
        switch = np.where(applies, active - active[applies].mean(), 0.0)
        basis = np.concatenate([switch[:, None], basis], 1)
    return basis


def _places(column: Floats) -> list[tuple[float, int]]:
    """Return some values of a column, each with a row's index."""
    values, rows = np.unique(column, return_index=True)
    off, finite = int((values == OFF).sum()), int(np.isfinite(values).sum())  # OFF comes first, NaN last
    few = np.unique(np.linspace(0, finite - 1, GRID).round().astype(int)) if finite > LEVELS else range(finite)
    return [(float(values[i]), int(rows[i])) for i in [*range(off), *(off + i for i in few)]]


def _products(columns: Sequence[Floats]) -> dict[tuple[int, int], Floats]:
    """Return the products of first-degree terms (rows, terms) of each pair."""
    first = [_terms(column, 1) for column in columns]
    return {
        (i, j): (first[i][:, :, None] * first[j][:, None, :]).reshape(len(columns[i]), -1)
        for i, j in combinations(range(len(columns)), 2)
    }


def _largest(bases: Sequence[Floats], products: dict[tuple[int, int], Floats], scores: Floats) -> list[tuple[int, int]]:
    """Return the pairs that explain most beyond the additive model."""
    moments = _Moments(bases, [*products.values()], scores)
    gains = {pair: float(moments.beyond(index)[0]) for index, pair in enumerate(products)}
    return sorted((pair for pair in gains if gains[pair] > 0), key=lambda pair: -gains[pair])[:MOST_PAIRS]


def _resampled(groups: Indices) -> tuple[Indices, Floats]:
    """Return each row's cluster (rows,), and draw counts (draws, clusters)."""
    clusters = np.unique(groups, return_inverse=True)[1] % MOST_CLUSTERS
    count, random = int(clusters.max()) + 1, np.random.default_rng(0)
    drawn = [np.bincount(random.integers(0, count, count), minlength=count) for _ in range(REPETITIONS)]
    return clusters, np.array(drawn, float)


class _Fit(NamedTuple):
    """Least squares of scores on a model's terms, in each draw.

    Attributes:
        weights: of the terms (draws, terms).
        inverse: of the terms' moments (draws, terms, terms).
        left: residual sum of squares (draws,).
        noise: residual variance (draws,).
    """

    weights: Floats
    inverse: Floats
    left: Floats
    noise: Floats


class _Moments:
    """Second moments of terms and scores, from which least squares follow.

    Resampling whole clusters only changes how often each cluster's moments count, so no resample touches the rows
    again. Results have a leading axis `draws`: index 0 uses all rows once, the others are resamples.

    Args:
        terms: terms (rows, terms) of each column, together the additive model.
        products: terms (rows, terms) of each pair; each pair is added to the model by itself.
        scores: (rows,).
        resampled: see `_resampled`.
    """

    def __init__(
        self,
        bases: Sequence[Floats],
        products: Sequence[Floats],
        scores: Floats,
        resampled: tuple[Indices, Floats] | None = None,
    ):
        parts = [np.ones((len(scores), 1)), *bases, *products, scores[:, None]]
        design = np.concatenate(parts, 1)
        sums = (design.T @ design)[None]
        if resampled is not None:
            clusters, drawn = resampled
            order = np.argsort(clusters, kind="stable")
            members = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
            of_cluster = np.stack([design[rows].T @ design[rows] for rows in members])
            sums = np.concatenate([sums, np.tensordot(drawn, of_cluster, 1)])
        rows, total, squares = sums[:, 0, 0], sums[:, 0, -1], sums[:, -1, -1]
        variance = (squares - total**2 / rows) / (rows - 1)
        differ = variance > RIDGE * variance[0]  # in the other draws, all scores are equal
        self.sums, self.rows, self.variance = sums[differ], rows[differ], variance[differ]
        # Where the terms of each column and pair are in the design, after the ones and before the scores.
        ends = np.cumsum([part.shape[1] for part in parts])
        spans = [np.arange(start, end) for start, end in pairwise(ends)]
        self.terms, self.of_terms, self.of_products = bases, spans[: len(bases)], spans[len(bases) : -1]
        self.additive = np.arange(ends[len(bases)])
        self.fit = self._fit(self.additive)

    def _fit(self, model: Indices) -> _Fit:
        """Fit a model, given as columns of the design, to each draw."""
        x, y = self.sums[:, model[:, None], model], self.sums[:, model, -1]
        inverse = np.linalg.inv(x + RIDGE * np.eye(len(model)))
        weights = np.einsum("rij,rj->ri", inverse, y)
        fitted = 2 * np.einsum("ri,ri->r", weights, y) - np.einsum("ri,rij,rj->r", weights, x, weights)
        left = self.sums[:, -1, -1] - fitted
        return _Fit(weights, inverse, left, left / np.maximum(1, self.rows - len(model)))

    def shares(self) -> Floats:
        """Return the share of each column (draws, columns), corrected for noise."""
        estimates = []
        for part in self.of_terms:
            spread, weights = self.sums[:, part[:, None], part] / self.rows[:, None, None], self.fit.weights[:, part]
            variances = np.einsum("ri,rij,rj->r", weights, spread, weights)
            by_chance = self.fit.noise * np.einsum("rij,rji->r", spread, self.fit.inverse[:, part[:, None], part])
            estimates.append((variances - by_chance) / self.variance)
        return np.stack(estimates, 1)

    def effect(self, column: int, row: int) -> Floats:
        """Return the effect of a column's value in a row (draws,)."""
        result: Floats = self.fit.weights[:, self.of_terms[column]] @ self.terms[column][row]
        return result

    def beyond(self, product: int) -> Floats:
        """Return the share of a pair's products beyond the additive model (draws,)."""
        part = self.of_products[product]
        paired = self._fit(np.concatenate([self.additive, part]))
        by_chance = len(part) * paired.noise
        result: Floats = (self.fit.left - paired.left - by_chance) / self.rows / self.variance
        return result


def _interval(values: Floats) -> Interval:
    """Return the first value, with the 95% interval of the others."""
    value = float(values[0])
    low, high = np.quantile(values[1:], ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Interval(value, min(float(low), value), max(float(high), value))
