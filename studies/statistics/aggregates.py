"""Aggregates of scores over runs and environments.

The definitions are those of Agarwal et al. (2021), arXiv:2108.13264. Scores are arrays (..., runs, environments),
higher is better; results have the leading axes (...), so thousands of resamples are aggregated in one call. Scores of
several environments must be normalized to one scale, such as 0 for random actions and 1 for a solved environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
TRIMMED = 0.25  # fraction of the scores dropped at each end


def mean(scores: ArrayLike) -> Floats:
    """Return the mean of all scores."""
    result: Floats = np.asarray(scores, float).mean((-2, -1))
    return result


def median(scores: ArrayLike) -> Floats:
    """Return the median over environments of the mean over runs."""
    result: Floats = np.median(np.asarray(scores, float).mean(-2), -1)
    return result


def iqm(scores: ArrayLike) -> Floats:
    """Return the interquartile mean.

    The lowest and the highest quarter of all scores are dropped.
    """
    scores = np.asarray(scores, float)
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    cut = int(TRIMMED * flat.shape[-1])
    result: Floats = flat[..., cut : flat.shape[-1] - cut].mean(-1)
    return result


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> Floats:
    """Return the mean shortfall of scores from a target; lower is better."""
    result: Floats = target - np.minimum(np.asarray(scores, float), target).mean((-2, -1))
    return result


def performance_profile(scores: ArrayLike, thresholds: Sequence[float]) -> Floats:
    """Return the fraction of scores above each threshold, (..., thresholds)."""
    above = np.asarray(scores, float)[..., None] > np.asarray(thresholds, float)
    result: Floats = above.mean((-3, -2))
    return result


def probability_of_improvement(scores: ArrayLike, others: ArrayLike) -> Floats:
    """Return the probability that a run scores higher than another's.

    It is the Mann-Whitney U statistic over the number of pairs, averaged over environments; ties count one half.

    Args:
        scores: (..., runs, environments).
        others: (..., other runs, environments).
    """
    x, y = np.asarray(scores, float)[..., :, None, :], np.asarray(others, float)[..., None, :, :]
    result: Floats = ((x > y) + 0.5 * (x == y)).mean((-3, -2, -1))
    return result


def power_of_two(scores: Floats) -> float:
    """Return the power of two just below the largest size.

    Division by it is exact.
    """
    _, exponent = math.frexp(max(map(abs, scores.tolist()), default=0.0))
    return math.ldexp(1.0, exponent - 1)


LABELS = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap"}
AGGREGATES: dict[str, Callable[[ArrayLike], Floats]] = {"iqm": iqm, "median": median, "mean": mean}
