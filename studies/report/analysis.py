"""Correlations between rungs, and results of trials."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.views import TrialView
from ..statistics.rank_correlation import spearman
from .content import CorrelationView

FEWEST_PAIRS = 4  # pairs of results; a correlation of fewer is not computed


def rank_correlations(trials: Sequence[TrialView], rungs: Sequence[int], objective: str) -> list[CorrelationView]:
    """Return Spearman's rank correlation for each pair of rungs."""
    lines = []
    at = [{row.epochs: row.result(objective) for row in trial.rungs} for trial in trials]
    for i, low in enumerate(rungs):
        for high in rungs[i + 1 :]:
            pairs = [(of[low], of[high]) for of in at if of.get(low) is not None and of.get(high) is not None]
            if len(pairs) < FEWEST_PAIRS:
                continue
            correlation = spearman(*zip(*pairs, strict=True))
            if correlation is not None:  # None if all results of a rung are equal
                lines.append(CorrelationView(low=low, high=high, trials=len(pairs), correlation=correlation))
    return lines
