"""Trainings whose returns rise, or still rise when they end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..engine.bounds import standard_error
from ..engine.views import Probe
from ..statistics.aggregates import Floats
from ..statistics.tails import t_quantile
from ..storage.rows import Trial
from ..study.config import Config
from ..study.objectives import MINIMIZE, RETURN, objectives_of
from .cures import Finding, longer_option
from .unlearned import EPISODE_RETURN, LEVEL, LUCK, Baselines, Curve

PARTS, FEWEST_EPOCHS = 5, 10  # of a learning curve
RISE = 0.1  # of the curve's range, from its last but one part to the last one
SURE = 3.0  # standard errors of a rise
FEWEST_DRAWN = 3  # epochs of a learning curve whose thirds are compared
FEWEST_RISES = 4  # a test of rises over trials has at least so many


def risen(probe: Probe, trials: Sequence[Trial], curves: Mapping[str, Curve]) -> set[int]:
    """Return the configurations whose training rose above random actions and untrained policies.

    The mean of the last fifth of its epochs is above that of random actions, less a standard error, since few of their
    episodes are known, and above the median untrained policy; and above the first fifth by three standard errors.
    """
    baselines, numbers = Baselines.of(probe), set[int]()
    levels = [statistics.median(baselines.means)] if baselines.policies else []
    levels += [statistics.fmean(baselines.random) - standard_error(baselines.random)] if baselines.random else []
    level = max(levels, default=math.inf)
    for trial in trials:
        points = curves.get(trial.uid, ())
        curve = np.array([values[EPISODE_RETURN] for _, values in points if EPISODE_RETURN in values])
        if len(curve) >= FEWEST_EPOCHS:
            first, *_, last = np.array_split(curve, PARTS)
            if last.mean() > level and last.mean() - first.mean() > SURE * _error(first, last):
                numbers.add(trial.configuration)
    return numbers


def drawn_return(trials: Sequence[Trial], curves: Mapping[str, Curve]) -> float | None:
    """Return the largest late return of a training's own episodes, or None.

    Their actions are drawn, those of evaluations are greedy. It is the mean over the last third of the epochs. None if
    the last thirds of all trainings together are not above their first ones, in Student's paired test at 5%.
    """
    columns = [
        [values[EPISODE_RETURN] for _, values in curves.get(trial.uid, ()) if EPISODE_RETURN in values]
        for trial in trials
    ]
    thirds = [np.array_split(np.array(curve), 3) for curve in columns if len(curve) >= FEWEST_DRAWN]
    rises = [float(last.mean() - first.mean()) for first, _, last in thirds]
    if len(rises) < FEWEST_RISES:
        return None
    sure = statistics.fmean(rises) > t_quantile(1 - LUCK, len(rises) - 1) * standard_error(rises)
    return max(float(last.mean()) for *_, last in thirds) if sure else None


def is_rewarded(curves: Mapping[str, Curve]) -> bool:
    """Return whether an episode of a training had rewards."""
    return any(values.get(EPISODE_RETURN) for curve in curves.values() for _, values in curve)


def is_early(config: Config, trials: Sequence[Trial], last: Sequence[int], curves: Mapping[str, Curve]) -> bool:
    """Return whether training ends while returns rise, so that learning may follow.

    In a study of fewer than ten epochs, no curve says so by itself. Its trials do together: the mean of the second half
    of their epochs is above that of the first half, in Student's paired test at 0.5%. The arguments are those of
    `too_short`.
    """
    if config.rungs[-1] >= FEWEST_EPOCHS:
        return any(too_short(config, trials, last, curves))
    returns = [_curve(curves.get(trial.uid, ()), RETURN, "maximize") for trial in trials]
    halves = [np.array_split(curve, 2) for curve in returns if len(curve) > 1]
    rises = np.array([second.mean() - first.mean() for first, second in halves])
    if len(rises) < FEWEST_RISES:
        return False
    error = float(rises.std(ddof=1)) / math.sqrt(len(rises))
    return bool(rises.mean() > t_quantile(1 - LEVEL, len(rises) - 1) * error)


def too_short(
    config: Config, trials: Sequence[Trial], last: Sequence[int], curves: Mapping[str, Curve]
) -> Iterator[Finding]:
    """Find studies whose returns still rise when training ends.

    Of most trials with a result on the last rung, and the best one, the mean of the last fifth of the learning curve is
    above that of the fifth before by 10% of the curve's range, and by two standard errors.

    Args:
        config: configuration of the study.
        trials: trials with one seed each.
        last: configurations with a result on the last rung, best first.
        curves: metrics of all tasks by uid.
    """
    ((objective, direction), *_) = objectives_of(config).items()
    places = {number: index for index, number in enumerate(last)}
    of: dict[int, list[Floats]] = {}
    for trial in trials:
        if trial.configuration in places:
            of.setdefault(trial.configuration, []).append(_curve(curves.get(trial.uid, ()), objective, direction))
    rises = [any(_rises(curve) for curve in of[number]) for number in last if number in of]
    if not rises or not rises[0] or 2 * sum(rises) <= len(rises):
        return
    high = config.rungs[-1]
    yield Finding(
        "too short",
        f"results still rise when training ends, in {sum(rises)} of {len(rises)} trials that trained to epoch {high}",
        f"train longer (rekindle extend STUDY --epochs {3 * high}, or {longer_option(config)} for a new study)",
    )


def _curve(points: Curve, objective: str, direction: str) -> Floats:
    """Return the metric that has more points, higher is better."""
    names = [objective, *([EPISODE_RETURN] if objective == RETURN else [])]
    columns = [[values[name] for _, values in points if name in values] for name in names]
    return (-1.0 if direction == MINIMIZE else 1.0) * np.array(max(columns, key=len))


def _rises(curve: Floats) -> bool:
    if len(curve) < FEWEST_EPOCHS:
        return False
    parts = np.array_split(curve, PARTS)
    means = np.array([part.mean() for part in parts])
    rise = means[-1] - means[-2]
    return bool(rise > RISE * np.ptp(means) and rise > 2 * _error(parts[-2], parts[-1]))


def _error(one: Floats, other: Floats) -> float:
    """Return the standard error of the difference of two parts' means.

    Differences of successive epochs tell the scatter, to which a trend adds little.
    """
    scatter = np.concatenate([np.diff(one), np.diff(other)]).std() / math.sqrt(2)
    return float(scatter * math.sqrt(1 / len(one) + 1 / len(other)))
