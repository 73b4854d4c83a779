"""Importances of hyperparameters from few trials, beside the exact decomposition of a whole grid.

    python benchmarks/importance.py FOLDER [--pattern 'brax*.npz'] [--trials 64] [--studies 100]

FOLDER holds tables of full grids in the form that `rekindle tune tabular` takes. A study is so many random rows, at the
end of their curves, of one seed. What `rekindle diagnose` says of each hyperparameter is compared with its exact share
of the variance of the whole grid's results, Var_x(E[score | x]) / Var(score), of the same seed. Shown are the mean
Spearman correlation of the estimates with the exact shares, that of the median study, and how often intervals hold the
exact one.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
from rekindle.studies.statistics.estimates import Interval
from rekindle.studies.statistics.rank_correlation import ranks
from rekindle.studies.statistics.variance import decompose
from rekindle.tasks.algorithms.tabular import Table, read_table


def exact(columns: list[np.ndarray], scores: np.ndarray) -> list[float]:
    """Return each column's share of the variance."""
    shares = []
    for column in columns:
        means = [(scores[column == value].mean(), (column == value).mean()) for value in np.unique(column)]
        shares.append(sum(weight * (mean - scores.mean()) ** 2 for mean, weight in means) / scores.var())
    return shares


def spearman(one: list[float], other: list[float]) -> float:
    """Return the rank correlation."""
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def studies(table: Table, options: argparse.Namespace) -> tuple[list[float], list[bool]]:
    """Return the correlation of each study, and whether each interval holds the exact share."""
    last = np.nan_to_num(table.returns[:, :, -1], nan=np.nanmin(table.returns[:, :, -1]))
    columns = [np.unique(column, return_inverse=True)[1] for column in table.columns.values()]
    correlations, covered = [], []
    for seed in range(options.studies):
        random, scores = np.random.default_rng(seed), last[:, seed % last.shape[1]]
        rows = random.permutation(len(scores))[: options.trials]
        true = exact(columns, scores)
        intervals: list[Interval] = list(
            decompose(
                [column[rows].astype(float) for column in columns], scores[rows], np.arange(len(rows)),
                np.zeros(len(rows), np.intp),
            ).shares
        )  # fmt: skip
        correlations.append(spearman([interval.estimate for interval in intervals], true))
        covered += [interval.low <= share <= interval.high for interval, share in zip(intervals, true, strict=True)]
    return correlations, covered


def main() -> None:
    """Print what importances of each table are worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pattern", default="*.npz", help="of the tables' names")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--studies", type=int, default=100, help="on each table")
    options = parser.parse_args()
    print(f"{'':40} Spearman, median, intervals that hold")
    for path in sorted(options.folder.glob(options.pattern)):
        correlations, covered = studies(read_table(str(path)), options)
        middle = statistics.median(correlations)
        print(f"{path.stem:40} {statistics.fmean(correlations):8.2f} {middle:7.2f} {statistics.fmean(covered):8.1%}")


if __name__ == "__main__":
    main()
