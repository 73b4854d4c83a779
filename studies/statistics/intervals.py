"""Bootstrap confidence intervals.

Random numbers come from a seed, so equal scores have equal intervals everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .aggregates import Floats
from .distributions import t_quantile

CONFIDENCE = 0.95
REPETITIONS = 2000
AT_ONCE = 1 << 22  # resampled scores in memory at a time
FEWEST = 3  # runs for an interval; the spread of two is meaningless
FEWEST_TO_RESAMPLE = 8  # runs for the bootstrap
FEW = 16  # runs from which their own spread is known well enough
SMALLEST_SPREAD = 1e-6  # relative standard error of a resample; below it, all its runs are the same one


class TooFewRuns(ValueError):
    """Too few runs for an interval."""


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    estimate: float
    low: float
    high: float


def interval(
    statistic: Callable[..., Floats],
    *samples: ArrayLike,
    confidence: float = CONFIDENCE,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Interval:
    """Return a statistic and its percentile bootstrap interval.

    Runs are drawn with replacement within each environment: the stratified bootstrap of Agarwal et al. (2021),
    arXiv:2108.13264.

    Args:
        statistic: maps samples (..., runs, environments) to (...).
        samples: arrays (runs, environments).
        confidence: confidence level.
        repetitions: number of resamples.
        seed: seed of the resampling.

    Raises:
        TooFewRuns: a sample has fewer than three runs.
    """
    arrays = [check_runs(sample) for sample in samples]
    values = np.concatenate([statistic(*drawn) for drawn in resamples(arrays, repetitions, seed)])
    low, high = np.quantile(values, _tails(confidence))
    return Interval(float(statistic(*arrays)), float(low), float(high))


def resamples(samples: Sequence[Floats], repetitions: int, seed: int) -> Iterator[list[Floats]]:
    """Yield batches of resampled samples, each (batch, runs, environments)."""
    random = np.random.Generator(np.random.Philox(seed))
    step = max(1, AT_ONCE // max(1, sum(sample.size for sample in samples)))
    for start in range(0, repetitions, step):
        count = min(step, repetitions - start)
        yield [
            np.take_along_axis(sample[None], random.integers(0, len(sample), (count, *sample.shape)), 1)
            for sample in samples
        ]


def mean_interval(
    runs: Sequence[float],
    alike: Sequence[Sequence[float]] = (),
    *,
    confidence: float = CONFIDENCE,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Interval:
    """Return the mean of independent runs and its confidence interval.

    Each end is that of Student's t or of a second interval, whichever lies farther out, since few runs of a skewed
    distribution often seem to vary less than they do:

    - Fewer than 16 runs with others alike: the moderated t (Smyth 2004, doi:10.2202/1544-6115.1027). The variance of
      the others counts as much as one further run.
    - Otherwise, from eight runs on: the bootstrap-t (Efron 1981, doi:10.2307/3314608), which follows the skew. With
      fewer runs its resamples hardly vary.

    Args:
        runs: results of the runs.
        alike: samples of other runs that vary about as much, such as results of other hyperparameters. Those of fewer
            than two runs are ignored.
        confidence: confidence level.
        repetitions: number of resamples.
        seed: seed of the resampling.

    Raises:
        TooFewRuns: there are fewer than three runs.
    """
    x = check_runs(np.asarray(runs, float)[:, None])[:, 0]
    n, center, variance = len(x), float(x.mean()), float(x.var(ddof=1))
    error = np.sqrt(variance / n)
    if error == 0:
        return Interval(center, center, center)
    _, level = tails = _tails(confidence)
    half = t_quantile(level, n - 1) * error
    low, high = center - half, center + half
    if n < FEW and (others := _pooled_variance(alike)) is not None:
        moderated = t_quantile(level, n) * np.sqrt((others + (n - 1) * variance) / n / n)
        low, high = min(low, center - moderated), max(high, center + moderated)
    elif n >= FEWEST_TO_RESAMPLE:
        batches = [drawn[:, :, 0] for (drawn,) in resamples([x[:, None]], repetitions, seed)]
        errors = np.concatenate([batch.std(1, ddof=1) for batch in batches]) / np.sqrt(n)
        means = np.concatenate([batch.mean(1) for batch in batches])
        varied = errors > SMALLEST_SPREAD * error
        below, above = np.quantile((means[varied] - center) / errors[varied], tails) * error
        low, high = min(low, center - above), max(high, center - below)
    return Interval(center, float(low), float(high))


def _pooled_variance(samples: Sequence[Sequence[float]]) -> float | None:
    """Return the variance within samples; None if no sample has two runs."""
    several = [np.asarray(sample, float) for sample in samples if len(sample) > 1]
    freedom = sum(len(sample) - 1 for sample in several)
    return sum(float(np.square(sample - sample.mean()).sum()) for sample in several) / freedom if freedom else None


def check_runs(sample: ArrayLike) -> Floats:
    """Return a sample (runs, environments) as an array.

    Raises:
        TooFewRuns: there are fewer than three runs.
    """
    array: Floats = np.asarray(sample, float)
    if len(array) < FEWEST:
        raise TooFewRuns(f"an interval needs at least {FEWEST} runs, but there are {len(array)}; train more seeds")
    return array


def _tails(confidence: float) -> tuple[float, float]:
    return (1 - confidence) / 2, (1 + confidence) / 2
