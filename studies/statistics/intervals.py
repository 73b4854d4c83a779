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
    runs: Sequence[float], confidence: float = CONFIDENCE, repetitions: int = REPETITIONS, seed: int = 0
) -> Interval:
    """Return the mean of independent runs and its confidence interval.

    Each end is that of Student's t or of the bootstrap-t (Efron 1981, doi:10.2307/3314608), whichever lies farther out:
    the bootstrap-t follows the skew of returns, but with few runs its resamples hardly vary, so it is used from eight
    runs on.

    Raises:
        TooFewRuns: there are fewer than three runs.
    """
    x = check_runs(np.asarray(runs, float)[:, None])[:, 0]
    n, center = len(x), float(x.mean())
    error = float(x.std(ddof=1)) / np.sqrt(n)
    if error == 0:
        return Interval(center, center, center)
    student = t_quantile(_tails(confidence)[1], n - 1)
    low, high = -student, student
    if n >= FEWEST_TO_RESAMPLE:
        batches = [drawn[:, :, 0] for (drawn,) in resamples([x[:, None]], repetitions, seed)]
        errors = np.concatenate([batch.std(1, ddof=1) for batch in batches]) / np.sqrt(n)
        means = np.concatenate([batch.mean(1) for batch in batches])
        varied = errors > SMALLEST_SPREAD * error
        low, high = np.quantile((means[varied] - center) / errors[varied], _tails(confidence))
    return Interval(center, center - max(float(high), student) * error, center - min(float(low), -student) * error)


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
