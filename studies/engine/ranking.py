"""The order of trials: which ranks before which, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ..methods import scheduling
from ..study.objectives import DEFAULT, point, ranking, undominated
from .views import StudyView, TrialView


def rank(trials: Sequence[TrialView], objectives: Mapping[str, str] = DEFAULT) -> list[TrialView]:
    """Rank the trials by epochs trained, then by violation, then by objectives.

    Trials of equal hyperparameters with other seeds rank together, by their mean. Among equal trials, the one with the
    better result comes first, then the one that had the better result on the rung before, and so on down: many reach
    the highest possible return, and those that had it early are more likely to have it with other seeds. Trials
    without a result and excluded trials are left out.
    """
    ranked: list[TrialView] = []
    for _, together in groupby(sorted(_with_results(trials, objectives), key=_training), key=_training):
        equals = list(together)
        ranked += [equals[index] for index in ranking(_points(equals, objectives))]
    return ranked


def ranked(study: StudyView) -> list[TrialView]:
    """Rank a study's trials; the winner of a confirmation comes first."""
    order = rank(study.trials, study.objectives)
    if scheduling(study.scheduler).confirms and study.best:
        best = study.best.number
        order.sort(key=lambda trial: trial.number != best)
    return order


def front(trials: Sequence[TrialView], objectives: Mapping[str, str] = DEFAULT) -> list[TrialView]:
    """Return the Pareto front of the trials that trained longest.

    They are in the order of their objectives, so the first has the best first one.
    """
    measured = _with_results(trials, objectives)
    longest = min(map(_training, measured), default=(0, False, 0, 0.0))
    equals = [trial for trial in measured if _training(trial) == longest]
    points = _points(equals, objectives)
    return [
        equals[index] for index in sorted(undominated(points), key=lambda index: [-value for value in points[index]])
    ]


def distinct(trials: Sequence[TrialView]) -> list[TrialView]:
    """Return the first trial of each set of hyperparameters."""
    first: dict[str, TrialView] = {}
    for trial in trials:
        first.setdefault(repr(sorted(trial.hyperparameters.items())), trial)
    return list(first.values())


def _with_results(trials: Sequence[TrialView], objectives: Mapping[str, str]) -> list[TrialView]:
    """Return the trials with a result, in the order of equal ones."""
    trained = [trial for trial in trials if trial.epochs and not trial.excluded]
    return sorted(trained, key=lambda trial: (_earlier(trial, objectives), trial.number))


def _earlier(trial: TrialView, objectives: Mapping[str, str]) -> list[float]:
    """Return the negated first objective of rungs, last first."""
    last = trial.epochs - (len(objectives) > 1)  # repeated trials rank by their means first
    rows = [row for row in trial.rungs if row.state == "done" and row.epochs <= last]
    points = zip(rows, (point(objectives, row.results()) for row in rows), strict=True)
    return [part for row, values in reversed([*points]) for part in (row.violation or 0.0, -values[0])]


def _training(trial: TrialView) -> tuple[int, bool, int, float]:
    """Return a sort key: negated epochs, failed repeats, negated seeds, violation."""
    trained = sum(seed.epochs >= trial.epochs for seed in trial.seeds or ())
    return -trial.epochs, bool(trial.unreliable), -trained, trial.violation or 0.0


def _points(trials: Sequence[TrialView], objectives: Mapping[str, str]) -> list[list[float]]:
    """Return the objectives by which trials rank."""
    return [point(objectives, trial.ranked_by()) for trial in trials]
