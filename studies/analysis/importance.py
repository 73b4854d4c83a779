"""Importances of a study's hyperparameters, with intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ...spaces import flatten
from ..engine.views import View
from ..statistics.aggregates import Floats
from ..statistics.estimates import Interval
from ..statistics.variance import OFF, Indices, decompose
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import objectives_of, point

CLEAR = 0.005  # a pair whose interval is above this share is clear
FEWEST = 8  # configurations; fewer say nothing
MISSING = object()  # in place of a value that a configuration lacks


@dataclass(frozen=True)
class Measurements:
    """Results of a study's configurations on all rungs.

    Attributes:
        names: searched hyperparameters that take several values, or do not apply everywhere.
        levels: distinct values of each, sorted.
        columns: for each hyperparameter, the index of each result's value in its levels; OFF where the value is None,
            NaN where it does not apply.
        scores: first objective of each result; higher is better.
        numbers: configuration of each result.
        rungs: rung of each result.
    """

    names: Sequence[str]
    levels: Sequence[Sequence[Any]]
    columns: Sequence[Floats]
    scores: Floats
    numbers: Indices
    rungs: Indices


def measurements(config: Config, trials: Sequence[Trial], segments: Sequence[Segment]) -> Measurements:
    """Return the results of configurations; `schedulers.seeds.collapse` makes the rows."""
    rows = [row for row in segments if row.state == "done"]
    params = {trial.number: flatten(trial.params) for trial in trials}
    names, levels, columns = [], [], []
    for name in config.searched.unfixed():
        values = [params[row.number].get(name, MISSING) for row in rows]
        distinct = {_hashable(value): value for value in values if value is not None and value is not MISSING}
        if not distinct:
            continue
        numeric = all(isinstance(value, int | float) for value in distinct.values())
        level = sorted(distinct.values(), key=None if numeric else str)
        ranks = {None: OFF, MISSING: np.nan} | {_hashable(value): float(rank) for rank, value in enumerate(level)}
        column = np.array([ranks[_hashable(value)] for value in values])
        if len(distinct) > 1 or not np.isfinite(column).all():
            names.append(name)
            levels.append(level)
            columns.append(column)
    objectives = objectives_of(config)
    several = len(objectives) > 1
    scores = [point(objectives, row.objectives or {})[0] if several else score_of(row) for row in rows]
    return Measurements(
        names,
        levels,
        columns,
        np.array(scores, float),
        np.array([row.number for row in rows], np.intp),
        np.array([row.rung for row in rows], np.intp),
    )


def _hashable(value: Any) -> Any:
    """Return a key that only equal values share; lists cannot be keys."""
    return (json.dumps(value),) if isinstance(value, list | tuple) else value


class ShareView(View):
    """Share of the results' variance that a hyperparameter explains by itself."""

    name: Annotated[str, "dotted name"]
    estimate: Annotated[float, "share"]
    low: Annotated[float, "lower end of the 95% interval"]
    high: Annotated[float, "upper end"]


class EffectView(View):
    """Effect of a value on the objective."""

    value: Annotated[Any, "value of the hyperparameter; null if it is switched off"]
    estimate: Annotated[float, "distance of the objective above its rung's mean"]
    low: Annotated[float, "lower end of the 95% interval"]
    high: Annotated[float, "upper end"]


class MarginalView(View):
    """Effect of a hyperparameter on the objective."""

    name: Annotated[str, "dotted name"]
    points: Annotated[Sequence[EffectView], "effects by value"]


class PairView(View):
    """Share of the variance that two hyperparameters explain together."""

    names: Annotated[Sequence[str], "dotted names of both"]
    estimate: Annotated[float, "share beyond those that each explains by itself"]
    low: Annotated[float, "lower end of the 95% interval"]
    high: Annotated[float, "upper end"]


class ImportancesView(View):
    """Shares, marginals and pairs of a study's hyperparameters."""

    importances: Annotated[Sequence[ShareView], "shares, the largest first"] = ()
    marginals: Annotated[Sequence[MarginalView], "marginals in the same order; none for too few configurations"] = ()
    pairs: Annotated[Sequence[PairView], "pairs, the largest first"] = ()


def importances(results: Measurements, sign: int) -> ImportancesView:
    """Return what the hyperparameters explain.

    It is empty for too few configurations, and if no hyperparameter or no result on any rung varies.

    Args:
        results: results, from `measurements`.
        sign: -1 if the objective is minimized, in which case scores are its negatives; else 1.
    """
    if len(np.unique(results.numbers)) < FEWEST or not results.columns or not _varies(results):
        return ImportancesView()
    parts = decompose(results.columns, results.scores, results.numbers, results.rungs)
    names = results.names
    order = sorted(range(len(names)), key=lambda i: -parts.shares[i].estimate)
    return ImportancesView(
        importances=[ShareView(name=names[i], **parts.shares[i]._asdict()) for i in order],
        marginals=[
            MarginalView(name=names[i], points=_effects(results.levels[i], parts.effects[i], sign))
            for i in order
            if parts.effects[i]
        ],
        pairs=[PairView(names=[names[i], names[j]], **share._asdict()) for i, j, share in parts.pairs],
    )


def _varies(observed: Measurements) -> bool:
    return any(len(np.unique(observed.scores[observed.rungs == rung])) > 1 for rung in np.unique(observed.rungs))


def _effects(levels: Sequence[Any], effects: Sequence[tuple[float, Interval]], sign: int) -> list[EffectView]:
    """Return the effect on the objective of each value."""
    signed = [(None if level == OFF else levels[int(level)], [sign * end for end in ends]) for level, ends in effects]
    return [
        EffectView(value=value, estimate=middle, low=min(ends), high=max(ends)) for value, (middle, *ends) in signed
    ]
