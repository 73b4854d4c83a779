"""Bootstrap confidence intervals.

Random numbers come from a seed, so equal scores have equal intervals everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from .aggregates import LABELS, Floats, power_of_two, probability_of_improvement
from .estimates import FEWEST, Interval
from .tails import t_quantile

CONFIDENCE = 0.95
REPETITIONS = 2000
AT_ONCE = 1 << 22  # resampled scores in memory at a time
FEWEST_TO_RESAMPLE = 8  # runs for the bootstrap
FEW = 16  # runs from which their own spread is known well enough
ENOUGH = 10  # runs for a bootstrap interval of the IQM that holds nearly as often as it says
# By runs: the least and greatest share of bootstrap intervals that contain the truth. First of the IQM and of the mean
# in one environment, then of both in several. `benchmarks/intervals.py` measures them.
COVERAGE = {
    3: ((0.72, 0.74), (0.56, 0.74), (0.84, 0.88), (0.71, 0.86)),
    4: ((0.87, 0.88), (0.65, 0.80), (0.89, 0.91), (0.74, 0.88)),
    5: ((0.88, 0.91), (0.71, 0.83), (0.91, 0.92), (0.78, 0.91)),
    6: ((0.89, 0.91), (0.77, 0.86), (0.91, 0.92), (0.82, 0.91)),
    7: ((0.89, 0.92), (0.74, 0.88), (0.90, 0.93), (0.80, 0.92)),
    8: ((0.92, 0.94), (0.77, 0.88), (0.91, 0.93), (0.82, 0.92)),
    9: ((0.92, 0.93), (0.78, 0.90), (0.92, 0.94), (0.84, 0.92)),
    ENOUGH: ((0.92, 0.93), (0.79, 0.92), (0.92, 0.93), (0.84, 0.93)),
}
SMALLEST_SPREAD = 1e-6  # relative standard error of a resample; below it, all its runs are the same one

BISECTIONS = 50


class TooFewRuns(ValueError):
    """Too few runs for an interval."""


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


def wilson(successes: float, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the share of successes and its score interval.

    Wilson (1927), doi:10.1080/01621459.1927.10502953. With draws as half successes it is wider than needed.
    """
    share, z = successes / trials, NormalDist().inv_cdf(0.5 + confidence / 2)
    center = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return Interval(share, center - half, center + half)


def coverage(runs: int, environments: int) -> dict[str, list[float]]:
    """Return how often bootstrap intervals of few runs contain the truth.

    They should in 0.95 of all cases. Each statistic has the least and the greatest share among normal and skewed
    results.
    """
    iqm, mean = COVERAGE[runs][:2] if environments == 1 else COVERAGE[runs][2:]
    return {"iqm": list(iqm), "mean": list(mean)}


def too_narrow(runs: Mapping[str, int], environments: int, cure: str = "") -> str:
    """Return a warning about bootstrap intervals of few runs, or "".

    Args:
        runs: number of runs of each side, by its name.
        environments: number of environments.
        cure: words that follow "Train more seeds".
    """
    few = {name: number for name, number in runs.items() if number < ENOUGH}
    if not few:
        return ""
    shares = [_shares(number, environments) for number in sorted({*few.values(), ENOUGH})]
    return (
        f"The 95% intervals of {', '.join(few)} are too narrow. They contain the truth in fewer than 95 of 100 cases: "
        f"{'; '.join(shares)}. Train more seeds{cure}."
    )


def _shares(runs: int, environments: int) -> str:
    """Return how often intervals contain the truth, in words."""
    shares = coverage(runs, environments)
    texts = [f"{100 * low:.0f} to {100 * high:.0f} ({LABELS[name]})" for name, (low, high) in shares.items()]
    return f"with {runs} runs, {' and '.join(texts)}"


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
    if (x == x[0]).all():  # their computed mean may differ from them in the last bit, and so may the ends
        return Interval(*3 * [float(x[0])])
    scale = power_of_two(x)
    x = x / scale  # squares of huge results would overflow, and of tiny ones vanish
    n, center, variance = len(x), float(x.mean()), float(x.var(ddof=1))
    error = np.sqrt(variance / n)
    if error == 0:
        return Interval(*3 * [center * scale])
    _, level = tails = _tails(confidence)
    half = t_quantile(level, n - 1) * error
    low, high = center - half, center + half
    if n < FEW and (others := _pooled_variance(alike, scale)) is not None:
        moderated = t_quantile(level, n) * np.sqrt((others + (n - 1) * variance) / n / n)
        low, high = min(low, center - moderated), max(high, center + moderated)
    elif n >= FEWEST_TO_RESAMPLE:
        batches = [drawn[:, :, 0] for (drawn,) in resamples([x[:, None]], repetitions, seed)]
        errors = np.concatenate([batch.std(1, ddof=1) for batch in batches]) / np.sqrt(n)
        means = np.concatenate([batch.mean(1) for batch in batches])
        varied = errors > SMALLEST_SPREAD * error
        below, above = np.quantile((means[varied] - center) / errors[varied], tails) * error
        low, high = min(low, center - above), max(high, center - below)
    return Interval(center * scale, float(low) * scale, float(high) * scale)


def greatest_mean(runs: Sequence[float], worst: float, confidence: float = CONFIDENCE, seed: int = 0) -> float:
    """Return an upper bound of the mean of bounded runs.

    It is a quantile of means of the runs and of one more, the worst, with random weights of a flat Dirichlet
    distribution (Gaffke 2005; Learned-Miller and Thomas 2020, arXiv:1905.06208). For runs of two values, which are what
    a t interval covers worst, it is the bound of Clopper and Pearson (1934), doi:10.1093/biomet/26.4.404.

    Args:
        runs: results of the runs.
        worst: greatest result that a run can have.
        confidence: confidence level.
        seed: seed of the weights.
    """
    weights = np.random.Generator(np.random.Philox(seed)).exponential(size=(REPETITIONS, len(runs) + 1))
    means = weights @ np.array([*runs, worst]) / weights.sum(1)
    return float(np.quantile(means, confidence))


def _pooled_variance(samples: Sequence[Sequence[float]], scale: float) -> float | None:
    """Return the variance within scaled samples; None without two runs."""
    several = [np.asarray(sample, float) / scale for sample in samples if len(sample) > 1]
    freedom = sum(len(sample) - 1 for sample in several)
    return sum(float(np.square(sample - sample.mean()).sum()) for sample in several) / freedom if freedom else None


def improvement_interval(
    scores: ArrayLike, others: ArrayLike, confidence: float = CONFIDENCE, repetitions: int = REPETITIONS, seed: int = 0
) -> Interval:
    """Return the probability of improvement and its interval.

    Each end lies as far out as that of the bootstrap and that of Newcombe (2006, doi:10.1002/sim.2324, method 5): few
    resamples of a side that wins nearly always ever lose, so the bootstrap alone is far too narrow near 0 and 1. If one
    side always wins, the smaller number of runs bounds the probability as that many throws of a coin would.

    Args:
        scores: (runs, environments).
        others: (other runs, environments).
        confidence: confidence level.
        repetitions: number of resamples.
        seed: seed of the resampling.

    Raises:
        TooFewRuns: a side has fewer than three runs.
    """
    x, y = check_runs(scores), check_runs(others)
    resampled = interval(probability_of_improvement, x, y, confidence=confidence, repetitions=repetitions, seed=seed)
    low = _improvement_end(resampled.estimate, x, y, confidence)
    high = 1 - _improvement_end(1 - resampled.estimate, x, y, confidence)
    return Interval(resampled.estimate, min(resampled.low, low), max(resampled.high, high))


def _improvement_end(estimate: float, scores: Floats, others: Floats, confidence: float) -> float:
    """Return the lower end of the interval of a probability of improvement.

    It is where z standard errors, as they would be there, lead to the estimate.
    """
    m, n, environments = len(scores), len(others), scores.shape[1]
    z, rest = NormalDist().inv_cdf(_tails(confidence)[1]), (m + n) / 2 - 1

    def error(p: float) -> float:
        spread = p * (1 - p) * (1 + rest * (1 - p) / (2 - p) + rest * p / (1 + p))
        return math.sqrt(spread / (m * n * environments))

    low, high = 0.0, estimate
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if estimate - middle > z * error(middle) else (low, middle)
    certain = _tails(confidence)[0] ** (1 / (min(m, n) * environments))
    return min(low, certain) if estimate == 1 else low


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
