"""Correlations between rungs, and results of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.json_views import Json
from ..statistics.rank_correlation import spearman
from ..study.objectives import RETURN

FEWEST_PAIRS = 4  # pairs of results; a correlation of fewer is not computed


def rank_correlations(trials: Sequence[Json], rungs: Sequence[int], objective: str) -> list[Json]:
    """Return Spearman's rank correlation for each pair of rungs."""
    found = []
    at = [{row["epochs"]: result_of(row, objective) for row in trial["rungs"]} for trial in trials]
    for i, low in enumerate(rungs):
        for high in rungs[i + 1 :]:
            pairs = [(of[low], of[high]) for of in at if of.get(low) is not None and of.get(high) is not None]
            if len(pairs) < FEWEST_PAIRS:
                continue
            correlation = spearman(*zip(*pairs, strict=True))
            if correlation is not None:  # None if all results of a rung are equal
                found.append({"low": low, "high": high, "trials": len(pairs), "correlation": correlation})
    return found


def result_of(result: Mapping[str, Any], objective: str) -> float | None:
    """Return an objective's value in a trial or rung, or None."""
    value: float | None = (result["objectives"] or {}).get(objective, result["return"] if objective == RETURN else None)
    return value
