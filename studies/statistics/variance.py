"""Variance decomposition: the share of variance that each hyperparameter explains.

    share of x = Var_x(E[score | x]) / Var(score)

over the configurations that were tried. Intervals come from an additive model, least squares on each hyperparameter's
own terms, from whose explained variance that of noise is taken off (Hays's omega squared); configurations are
resampled. What interacts is better seen by a forest (Hutter, Hoos and Leyton-Brown 2014, fANOVA), which gives
the estimates where scikit-learn is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aggregates import Floats
from .intervals import CONFIDENCE, Interval

Indices = NDArray[np.intp]
LEVELS = 6  # a hyperparameter with at most so many values has a term for each; others have polynomials
DEGREE = 3  # of these
ROWS_PER_TERM = 3  # at least; fewer terms otherwise
REPETITIONS = 200
TREES = 64
GRID = 9  # values of a hyperparameter at which a forest is asked
RIDGE = 1e-8


def variance_shares(
    columns: Sequence[Floats], scores: Floats, groups: Indices, blocks: Indices, forest: bool = True
) -> list[Interval]:
    """Return the share of each column, with its 95% interval.

    Args:
        columns: a hyperparameter's values each, (rows,), as ranks or numbers of levels; NaN where it does not apply.
        scores: of the rows, (rows,).
        groups: the configuration of each row, (rows,); those are resampled.
        blocks: the rung of each row, (rows,), whose mean score is taken off.
        forest: whether a forest gives the estimates where scikit-learn, slow to import, is installed.
    """
    scores = _without_blocks(scores, blocks)
    if not len(scores) or not scores.any():
        return [Interval(0.0, 0.0, 0.0) for _ in columns]
    degree = next((d for d in range(DEGREE, 1, -1) if _size(columns, d) * ROWS_PER_TERM <= len(scores)), 1)
    terms = [_terms(column, degree) for column in columns]
    additive = _explained(terms, scores)
    random, members = np.random.default_rng(0), [np.flatnonzero(groups == group) for group in np.unique(groups)]
    drawn = []
    for _ in range(REPETITIONS):
        rows = np.concatenate([members[i] for i in random.integers(0, len(members), len(members))])
        if np.ptp(scores[rows]) > 0:
            drawn.append(_explained([each[rows] for each in terms], scores[rows]))
    ends = np.quantile(np.clip(drawn, 0, 1), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=0)
    shares = forest_shares(columns, scores) if forest else None
    values = np.clip(additive if shares is None else shares, 0, 1)
    return [
        Interval(float(value), float(min(low, value)), float(max(high, value)))
        for value, low, high in zip(values, *ends, strict=True)
    ]


def forest_shares(columns: Sequence[Floats], scores: Floats) -> Floats | None:
    """Return the shares in a random forest; None without scikit-learn."""
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        return None
    x = np.stack(columns, 1)
    forest = RandomForestRegressor(TREES, random_state=0).fit(x, scores)
    total, shares = scores.var(), []
    for axis, column in enumerate(columns):
        active = np.flatnonzero(np.isfinite(column))
        if not len(active):
            shares.append(0.0)
            continue
        values: NDArray[Any] = np.unique(column[active])
        weights = None
        if len(values) > GRID:
            values = np.quantile(column[active], (np.arange(GRID) + 0.5) / GRID)
        else:
            weights = (column[active, None] == values).sum(0)
        asked = np.repeat(x[None, active], len(values), 0)
        asked[:, :, axis] = values[:, None]
        means = forest.predict(asked.reshape(-1, x.shape[1])).reshape(len(values), -1).mean(1)
        center = np.average(means, weights=weights)
        shares.append(float(np.average((means - center) ** 2, weights=weights)) * len(active) / len(column) / total)
    return np.array(shares)


def _without_blocks(scores: Floats, blocks: Indices) -> Floats:
    """Return scores less the mean of their block."""
    sums, counts = np.bincount(blocks, scores), np.bincount(blocks)
    result: Floats = scores - (sums / np.maximum(counts, 1))[blocks]
    return result


def _size(columns: Sequence[Floats], degree: int) -> int:
    return sum(_terms(column, degree).shape[1] for column in columns)


def _terms(column: Floats, degree: int) -> Floats:
    """Return a column's terms (rows, terms), 0 where it does not apply."""
    active = np.isfinite(column)
    levels = np.unique(column[active])
    terms: NDArray[Any] = np.zeros((len(column), 0))
    if 1 < len(levels) <= LEVELS:
        terms = (column[:, None] == levels[None, 1:]).astype(float)
    elif len(levels) > LEVELS:
        low, high = levels[0], levels[-1]
        place = np.where(active, (column - low) / (high - low) * 2 - 1, 0.0)
        terms = np.polynomial.legendre.legvander(place, degree)[:, 1:]
    if active.any():
        terms = np.where(active[:, None], terms - terms[active].mean(0), 0.0)
    return terms


def _explained(terms: Sequence[Floats], scores: Floats) -> Floats:
    """Return the share of each group of terms, less that of noise."""
    rows = len(scores)
    design = np.concatenate([np.ones((rows, 1)), *terms], 1)
    inverse = np.linalg.inv(design.T @ design + RIDGE * np.eye(design.shape[1]))
    weights = inverse @ (design.T @ scores)
    noise = float(np.square(scores - design @ weights).sum()) / max(1, rows - design.shape[1])
    shares, start = [], 1
    for each in terms:
        part = slice(start, start := start + each.shape[1])
        spread = each.T @ each / rows
        explained = weights[part] @ spread @ weights[part] - noise * float(np.trace(spread @ inverse[part, part]))
        shares.append(explained / float(scores.var(ddof=1)))
    return np.array(shares)
