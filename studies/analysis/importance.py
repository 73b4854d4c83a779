"""Importance of the hyperparameters of a study, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...spaces import flatten
from ...spaces.choices import Fixed
from ..statistics.aggregates import Floats
from ..statistics.intervals import Interval
from ..statistics.variance import Indices, variance_shares
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import objectives_of, point

FEWEST = 8  # configurations; fewer tell nothing


@dataclass(frozen=True)
class Observations:
    """Results of a study's configurations on all rungs.

    Attributes:
        names: of the searched hyperparameters that differ.
        columns: their values in each result, as ranks; NaN where one does not apply.
        scores: the first objective, the higher the better.
        numbers: the configuration of each result.
        rungs: of each result.
    """

    names: Sequence[str]
    columns: Sequence[Floats]
    scores: Floats
    numbers: Indices
    rungs: Indices


def observations(config: Config, trials: Sequence[Trial], segments: Sequence[Segment]) -> Observations:
    """Return the results of configurations, see `schedulers.seeds.collapse`."""
    rows = [row for row in segments if row.state == "done"]
    params = {trial.number: flatten(trial.params) for trial in trials}
    names, columns = [], []
    for name, dimension in config.searched.flat().items():
        values = [params[row.number].get(name) for row in rows]
        known = {value for value in values if value is not None}
        if isinstance(dimension, Fixed) or not known:
            continue
        numeric = all(isinstance(value, int | float) for value in known)
        ranks = {value: rank for rank, value in enumerate(sorted(known, key=None if numeric else str))}
        column = np.array([ranks.get(value, np.nan) for value in values])
        if len(known) > 1 or np.isnan(column).any():
            names.append(name)
            columns.append(column)
    objectives = objectives_of(config)
    several = len(objectives) > 1
    scores = [point(objectives, row.objectives or {})[0] if several else score_of(row) for row in rows]
    return Observations(
        names,
        columns,
        np.array(scores, float),
        np.array([row.number for row in rows], np.intp),
        np.array([row.rung for row in rows], np.intp),
    )


def importances(found: Observations, forest: bool = True) -> dict[str, Interval]:
    """Return the share of variance of each hyperparameter, largest first.

    Too few configurations tell nothing, and nothing is returned.

    Args:
        found: see `observations`.
        forest: whether a forest gives the estimates where scikit-learn, slow to import, is installed.
    """
    if len(np.unique(found.numbers)) < FEWEST or not found.columns:
        return {}
    shares = variance_shares(found.columns, found.scores, found.numbers, found.rungs, forest)
    return dict(sorted(zip(found.names, shares, strict=True), key=lambda pair: -pair[1].estimate))
