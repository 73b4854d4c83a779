"""Decomposition of variance for functions with known shares, effects and interactions."""

from __future__ import annotations

import numpy as np
import pytest
from rekindle.studies.statistics.variance import MOST_CLUSTERS, Decomposition, decompose

ROWS = 400


def planted(rows: int = ROWS, noise: float = 0.1) -> tuple[list[np.ndarray], np.ndarray]:
    """Four columns of ranks, and 2 a + b c on them, each scaled to variance 1."""
    random = np.random.default_rng(1)
    columns = [random.permutation(rows).astype(float) for _ in range(4)]
    a, b, c, _ = ((column - column.mean()) / column.std() for column in columns)
    return columns, 2 * a + b * c + noise * random.normal(size=rows)


def decomposed(columns: list[np.ndarray], scores: np.ndarray) -> Decomposition:
    rows = np.arange(len(scores))
    return decompose(columns, scores, rows, np.zeros_like(rows))


def test_shares_and_pairs_of_a_known_function_lie_within_their_intervals() -> None:
    result = decomposed(*planted())
    for share, expected in zip(result.shares, (0.8, 0.0, 0.0, 0.0), strict=True):
        assert share.low - 0.02 <= expected <= share.high + 0.02
        assert share.low <= share.estimate <= share.high
    [(one, other, share), *others] = result.pairs
    assert (one, other) == (1, 2)
    assert share.low <= 0.2 <= share.high
    assert all(interval.high < 0.02 for *_, interval in others)


def test_effects_are_the_function_of_each_column_alone() -> None:
    columns, scores = planted()
    result = decomposed(columns, scores)
    deviation = columns[0].std()
    for rank, effect in result.effects[0]:
        assert effect.low <= 2 * (rank - columns[0].mean()) / deviation + 0.1
        assert effect.high >= 2 * (rank - columns[0].mean()) / deviation - 0.1
    assert [rank for rank, _ in result.effects[0]] == np.linspace(0, ROWS - 1, 9).round().tolist()
    assert max(abs(effect.estimate) for _, effect in result.effects[3]) < 0.3


@pytest.mark.parametrize("size", [2.0**900, 2.0**-900])
def test_shares_do_not_depend_on_the_size_of_results(size: float) -> None:
    columns, scores = planted()
    usual, other = decomposed(columns, scores), decomposed(columns, size * scores)
    assert (other.shares, other.pairs) == (usual.shares, usual.pairs)
    assert other.effects[0][0][1].estimate == size * usual.effects[0][0][1].estimate


def test_levels_have_an_effect_each_and_rows_without_a_value_none() -> None:
    random = np.random.default_rng(2)
    level, other = random.integers(0, 3, ROWS).astype(float), random.permutation(ROWS).astype(float)
    other[level == 0] = np.nan
    result = decomposed([level, other], np.array([0.0, 1.0, 5.0])[level.astype(int)])
    effects = [effect.estimate for _, effect in result.effects[0]]
    assert np.diff(effects) == pytest.approx([1.0, 4.0], abs=1e-6)
    assert all(np.isfinite(rank) for rank, _ in result.effects[1])


def test_noise_has_no_clear_pair_and_few_rows_name_none() -> None:
    columns, _ = planted()
    noise = np.random.default_rng(3).normal(size=ROWS)
    assert all(share.low < 0.005 for *_, share in decomposed(columns, noise).pairs)
    assert decomposed([column[:12] for column in columns], noise[:12]).pairs == []
    assert decomposed(columns, np.zeros(ROWS)).pairs == []


def test_many_configurations_are_resampled_together() -> None:
    few, many = (decomposed(*planted(rows)) for rows in (MOST_CLUSTERS, 4 * MOST_CLUSTERS))
    widths = [result.shares[0].high - result.shares[0].low for result in (few, many)]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.4)  # four times as much is twice as exact


def test_few_configurations_have_wide_intervals_and_no_effects() -> None:
    random = np.random.default_rng(4)
    configurations, rungs = 16, 3
    columns = [np.tile(random.permutation(configurations), rungs).astype(float) for _ in range(17)]
    scores = columns[0] + random.normal(size=configurations * rungs)
    groups, blocks = np.tile(np.arange(configurations), rungs), np.repeat(np.arange(rungs), configurations)
    many, few = (decompose(columns[:count], scores, groups, blocks) for count in (17, 3))
    assert many.shares[0].low > 0.5  # explains nearly all, which a model of it alone can tell
    assert all(share.high > 0.1 for share in many.shares)  # none is without effect
    assert not any(many.effects)  # with the others held fixed, which takes a model of all
    assert few.shares[0].low > 0.5
    assert max(share.high for share in few.shares[1:]) < 0.2
    assert all(few.effects)
