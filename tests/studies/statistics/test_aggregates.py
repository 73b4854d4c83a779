"""Aggregates equal those of rliable on the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from rekindle.studies.statistics.aggregates import (
    Floats,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from rliable import library
from rliable import metrics as theirs

SHAPES = [(3, 1), (5, 4), (10, 7), (11, 1)]


@pytest.fixture(params=SHAPES, ids=str)
def scores(request: pytest.FixtureRequest) -> Floats:
    return np.random.default_rng(3).normal(0.5, 0.4, request.param).round(1)  # some are equal


def test_each_aggregate_is_rliables(scores: Floats) -> None:
    assert iqm(scores) == pytest.approx(theirs.aggregate_iqm(scores), abs=1e-9)
    assert mean(scores) == pytest.approx(theirs.aggregate_mean(scores), abs=1e-9)
    assert median(scores) == pytest.approx(theirs.aggregate_median(scores), abs=1e-9)
    assert optimality_gap(scores) == pytest.approx(theirs.aggregate_optimality_gap(scores), abs=1e-9)
    assert optimality_gap(scores, 0.3) == pytest.approx(theirs.aggregate_optimality_gap(scores, 0.3), abs=1e-9)


def test_the_probability_of_improvement_is_rliables(scores: Floats) -> None:
    others = np.random.default_rng(4).normal(0.4, 0.4, (6, scores.shape[1])).round(1)
    assert probability_of_improvement(scores, others) == pytest.approx(
        theirs.probability_of_improvement(scores, others), abs=1e-9
    )
    assert probability_of_improvement(scores, scores) == 0.5


def test_a_performance_profile_is_rliables(scores: Floats) -> None:
    thresholds = [-1.0, 0.0, 0.25, 0.5, 1.0, 9.0]
    assert performance_profile(scores, thresholds) == pytest.approx(
        library.score_distributions(scores, thresholds), abs=1e-9
    )


def test_leading_axes_are_resamples() -> None:
    many = np.random.default_rng(5).normal(size=(8, 5, 3))
    others = np.random.default_rng(6).normal(size=(8, 4, 3))
    for aggregate in (iqm, mean, median, optimality_gap):
        assert aggregate(many).tolist() == [float(aggregate(sample)) for sample in many]
    assert probability_of_improvement(many, others).tolist() == [
        float(probability_of_improvement(a, b)) for a, b in zip(many, others, strict=True)
    ]
