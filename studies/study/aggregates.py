"""One number of several returns, of a configuration's seeds or of a policy's episodes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def iqm(scores: Sequence[float]) -> float:
    """Interquartile mean: without the lowest and the highest quarter; Agarwal et al. (2021), arXiv:2108.13264."""
    cut = len(scores) // 4
    return statistics.fmean(sorted(scores)[cut : len(scores) - cut])


def top_quartile(scores: Sequence[float]) -> float:
    """Mean of the highest quarter, of one score at least."""
    return statistics.fmean(sorted(scores)[-max(1, len(scores) // 4) :])


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "iqm": iqm,
    "top_quartile": top_quartile,
}
