"""Importances of a study's hyperparameters, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...spaces import flatten
from ...spaces.choices import Fixed
from ..statistics.aggregates import Floats
from ..statistics.intervals import Interval
from ..statistics.variance import Indices, decompose
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import objectives_of, point

CLEAR = 0.005  # a pair whose interval is above this share is clear
FEWEST = 8  # configurations; fewer say nothing


@dataclass(frozen=True)
class Observations:
    """Results of a study's configurations on all rungs.

    Attributes:
        names: searched hyperparameters that take several values, or do not apply everywhere.
        levels: distinct values of each, sorted.
        columns: for each hyperparameter, the index of each result's value in its levels; NaN where it does not apply.
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


def observations(config: Config, trials: Sequence[Trial], segments: Sequence[Segment]) -> Observations:
    """Return the results of configurations; `schedulers.seeds.collapse` makes the rows."""
    rows = [row for row in segments if row.state == "done"]
    params = {trial.number: flatten(trial.params) for trial in trials}
    names, levels, columns = [], [], []
    for name, dimension in config.searched.flat().items():
        values = [params[row.number].get(name) for row in rows]
        known = {value for value in values if value is not None}
        if isinstance(dimension, Fixed) or not known:
            continue
        numeric = all(isinstance(value, int | float) for value in known)
        level = sorted(known, key=None if numeric else str)
        ranks = {value: rank for rank, value in enumerate(level)}
        column = np.array([ranks.get(value, np.nan) for value in values])
        if len(known) > 1 or np.isnan(column).any():
            names.append(name)
            levels.append(level)
            columns.append(column)
    objectives = objectives_of(config)
    several = len(objectives) > 1
    scores = [point(objectives, row.objectives or {})[0] if several else score_of(row) for row in rows]
    return Observations(
        names,
        levels,
        columns,
        np.array(scores, float),
        np.array([row.number for row in rows], np.intp),
        np.array([row.rung for row in rows], np.intp),
    )


@dataclass(frozen=True)
class Importances:
    """Shares, marginals and pairs of a study's hyperparameters, with 95% intervals.

    Attributes:
        shares: share of the results' variance that each explains, largest first.
        marginals: for each, in the same order, its values and how far the objective lies above the rung's mean there;
            none for too few configurations.
        pairs: names, and the share that the two explain together beyond what each explains alone; largest first.
    """

    shares: Mapping[str, Interval] = field(default_factory=dict)
    marginals: Mapping[str, Sequence[tuple[Any, Interval]]] = field(default_factory=dict)
    pairs: Sequence[tuple[str, str, Interval]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the importances in the form that `cli` documents."""
        return {
            "importances": [{"name": name, **share._asdict()} for name, share in self.shares.items()],
            "marginals": [
                {"name": name, "points": [{"value": value, **effect._asdict()} for value, effect in points]}
                for name, points in self.marginals.items()
            ],
            "pairs": [{"names": [one, two], **share._asdict()} for one, two, share in self.pairs],
        }


def importances(found: Observations, sign: int) -> Importances:
    """Return what the hyperparameters explain.

    It is empty for too few configurations, and if no hyperparameter or no result on any rung varies.

    Args:
        found: results, from `observations`.
        sign: -1 if the objective is minimized, in which case scores are its negatives; else 1.
    """
    if len(np.unique(found.numbers)) < FEWEST or not found.columns or not _varies(found):
        return Importances()
    told = decompose(found.columns, found.scores, found.numbers, found.rungs)
    order = sorted(range(len(found.names)), key=lambda i: -told.shares[i].estimate)
    return Importances(
        {found.names[i]: told.shares[i] for i in order},
        {found.names[i]: _marginal(found.levels[i], told.effects[i], sign) for i in order if told.effects[i]},
        [(found.names[i], found.names[j], share) for i, j, share in told.pairs],
    )


def _varies(found: Observations) -> bool:
    return any(len(np.unique(found.scores[found.rungs == rung])) > 1 for rung in np.unique(found.rungs))


def _marginal(
    levels: Sequence[Any], effects: Sequence[tuple[float, Interval]], sign: int
) -> list[tuple[Any, Interval]]:
    """Return the effect on the objective of each value."""
    signed = [(levels[int(place)], [sign * end for end in each]) for place, each in effects]
    return [(value, Interval(middle, min(ends), max(ends))) for value, (middle, *ends) in signed]
