"""Rank correlations against scipy and textbook cases, and their intervals by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from rekindle.studies.statistics.rank_correlation import Agreement, ranks, spearman, unrestricted
from scipy import stats


def test_ranks_and_spearman_are_those_of_scipy_with_ties_too() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 5, 30):
        one, other = rng.integers(0, 8, n).tolist(), rng.normal(size=n).tolist()
        assert ranks(one) == (n + 1 - stats.rankdata(one)).tolist()
        if len(set(one)) > 1:
            assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_too_few_pairs_and_equal_scores_say_nothing() -> None:
    for sample in (Agreement.of([1, 2, 3], [1, 2, 3]), Agreement.of([0] * 9, range(9)), Agreement()):
        assert (sample, sample.correlation, sample.interval) == (Agreement(), 0.0, (-1.0, 1.0))


def test_pooling_weighs_samples_by_their_size_and_perfect_agreement_stays_finite() -> None:
    perfect, reversed_ = Agreement.of(range(20), range(20)), Agreement.of(range(8), range(8, 0, -1))
    assert 0.98 < perfect.correlation < 1
    assert -1 < reversed_.correlation < -0.98
    both = perfect.pooled(reversed_)
    assert (both, both.pairs) == (reversed_.pooled(perfect), 28)
    assert both.correlation == pytest.approx(np.tanh((17 - 5) / 22 * np.arctanh(0.99)))


def test_the_interval_covers_the_true_correlation_in_95_of_100_samples() -> None:
    """Four samples of twelve normal pairs each; their rank correlation is 6 / pi arcsin(r / 2)."""
    rng = np.random.default_rng(1)
    true, covered = 6 / np.pi * np.arcsin(0.6 / 2), 0
    for _ in range(400):
        pooled = Agreement()
        for _ in range(4):
            x, noise = rng.normal(size=(2, 12))
            pooled = pooled.pooled(Agreement.of(x.tolist(), (0.6 * x + 0.8 * noise).tolist()))
        low, high = pooled.interval
        covered += low <= true <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_the_correlation_among_all_is_found_from_the_best() -> None:
    rng = np.random.default_rng(2)
    x, noise = rng.normal(size=(2, 100_000))
    y = 0.7 * x + np.sqrt(1 - 0.7**2) * noise
    for share in (0.1, 1 / 3, 1.0):
        best = np.argsort(-x)[: int(share * len(x))]
        among_best = float(np.corrcoef(x[best], y[best])[0, 1])
        assert unrestricted(among_best, share) == pytest.approx(0.7, abs=0.02)
    assert unrestricted(0.0, 0.5) == 0.0
    assert unrestricted(-0.5, 0.5) == -unrestricted(0.5, 0.5)
