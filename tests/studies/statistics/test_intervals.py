"""Intervals equal those of rliable on the same resamples, and have the stated coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from rekindle.studies.statistics import intervals
from rekindle.studies.statistics.aggregates import Floats, iqm, mean, probability_of_improvement
from rekindle.studies.statistics.intervals import (
    Interval,
    TooFewRuns,
    coverage,
    greatest_mean,
    improvement_interval,
    interval,
    mean_interval,
)
from rekindle.studies.statistics.tails import chi2_tail, f_normal, t_quantile, t_tails
from rliable import library
from scipy import stats

RANDOM = np.random.default_rng(0)
SCORES = RANDOM.normal(size=(6, 3))
OTHERS = RANDOM.normal(size=(5, 3))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 999])
@pytest.mark.parametrize("x", [0.0, 0.1, 1.0, 3.0, 30.0, 900.0])
def test_tails_are_those_of_the_distributions(x: float, freedom: int) -> None:
    assert chi2_tail(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), abs=1e-12)
    assert t_tails(x, freedom) == pytest.approx(2 * stats.t.sf(x, freedom), abs=1e-10)


@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize("environments", [1, 5])
def test_bootstrap_intervals_contain_the_truth_as_often_as_said(runs: int, environments: int) -> None:
    random = np.random.default_rng(0)
    for name, statistic in (("iqm", iqm), ("mean", mean)):
        least, greatest = coverage(runs, environments)[name]
        samples = [random.normal(size=(runs, environments)) for _ in range(600)]  # the truth is 0
        result = [interval(statistic, sample, repetitions=300, seed=n) for n, sample in enumerate(samples)]
        share = np.mean([ends.low <= 0 <= ends.high for ends in result])
        assert least - 0.05 < share < greatest + 0.05  # four standard errors


def test_an_interval_within_bounds_keeps_its_estimate() -> None:
    result = Interval(0.9, 0.7, 1.1)
    assert result.within(0, 1, [0.8, 1]) == Interval(0.9, 0.7, 1)
    assert result.within(None, None, [0.8, 1]) == result
    assert result.within(0.8, None, [0.8, 1]) == Interval(0.9, 0.8, 1.1)
    assert result.within(0, 0.95, [0.8, 1]) == result.within(0.85, 1.2, [0.8, 1]) == result  # wrong bounds
    assert Interval(1 + 1e-16, 0.7, 1.1).within(0, 1, [1, 1]).high >= 1


@pytest.mark.parametrize("freedom", [1, 2, 9, 19, 200])
def test_quantiles_are_those_of_students_t(freedom: int) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-8)


@pytest.mark.parametrize("freedom", [(3, 4), (7, 16), (47, 96)])
@pytest.mark.parametrize("level", [0.05, 0.1, 0.5, 0.9])
def test_a_normal_deviate_has_the_tail_of_an_f_ratio(level: float, freedom: tuple[int, int]) -> None:
    ratio = stats.f.ppf(level, *freedom)
    assert stats.norm.cdf(f_normal(ratio, *freedom)) == pytest.approx(level, abs=0.005)


@pytest.mark.parametrize("samples", [(SCORES,), (SCORES, OTHERS)], ids=["one", "two"])
def test_an_interval_is_rliables_on_the_same_resamples(
    samples: tuple[Floats, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    statistic = iqm if len(samples) == 1 else probability_of_improvement
    bootstrap = library.StratifiedBootstrap if len(samples) == 1 else library.StratifiedIndependentBootstrap
    np.random.seed(1)  # theirs is NumPy's global one
    theirs = bootstrap(*samples).conf_int(lambda *drawn: np.array([statistic(*drawn)]), reps=300, method="percentile")

    def same(arrays: Sequence[Floats], repetitions: int, seed: int) -> Iterator[list[Floats]]:
        np.random.seed(1)
        for drawn, _ in bootstrap(*arrays).bootstrap(repetitions):
            yield [np.array(sample)[None] for sample in drawn]

    monkeypatch.setattr(intervals, "resamples", same)
    ours = interval(statistic, *samples, repetitions=300)
    assert [ours.low, ours.high] == pytest.approx(theirs[:, 0].tolist(), abs=1e-9)
    assert ours.estimate == pytest.approx(float(statistic(*samples)))


def test_each_environment_is_resampled_on_its_own() -> None:
    scores = np.stack([np.arange(4.0), 100 + np.arange(4.0)], 1)
    (drawn,) = next(intervals.resamples([scores], 200, 0))
    assert drawn.shape == (200, 4, 2)
    assert set(drawn[..., 0].ravel()) == {0, 1, 2, 3}
    assert set(drawn[..., 1].ravel()) == {100, 101, 102, 103}
    assert (drawn[..., 0] != drawn[..., 1] - 100).any()


def test_the_same_scores_have_the_same_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = interval(mean, SCORES), mean_interval(SCORES[:, 0].tolist())
    assert whole == (interval(mean, SCORES), mean_interval(SCORES[:, 0].tolist()))
    monkeypatch.setattr(intervals, "AT_ONCE", 1 << 12)  # in several portions
    assert interval(mean, SCORES).estimate == whole[0].estimate


def test_the_interval_of_a_mean_covers_it_also_of_skewed_returns() -> None:
    """Ten runs of an agent that fails one time in four, or learns more or less well."""
    random, hits = np.random.default_rng(7), 0
    for _ in range(400):
        runs = np.where(random.random(10) < 0.25, -200.0, 50 * random.gamma(2, 1, 10))
        _, low, high = mean_interval(runs.tolist(), repetitions=400)
        hits += low <= 0.25 * -200 + 0.75 * 100 <= high
    assert 0.92 <= hits / 400 <= 0.98  # of 400 at 95 of 100, two standard errors are 2 of 100


@pytest.mark.parametrize("runs", [3, 5, 20])
@pytest.mark.parametrize("wins", [0.5, 0.9, 0.99])
def test_the_interval_of_a_probability_of_improvement_covers_it(runs: int, wins: float) -> None:
    """The bootstrap alone covers 0.9 of three runs in 42 of 100, and 0.99 of twenty in 69."""
    random, hits = np.random.default_rng(3), 0
    apart = np.sqrt(2) * stats.norm.ppf(wins)  # of two normal variables with variance 1
    for _ in range(200):
        one, other = random.normal(apart, 1, (runs, 1)), random.normal(0, 1, (runs, 1))
        _, low, high = improvement_interval(one, other, repetitions=200)
        hits += low <= wins <= high
    assert hits / 200 >= 0.92  # of 200 at 95 of 100, two standard errors are 3 of 100


def test_a_side_that_always_wins_may_still_lose() -> None:
    """Clopper and Pearson's interval of 5 successes in 5 trials, as 5 runs are compared with the constant 500."""
    wins = improvement_interval(np.full((5, 1), 500.0), np.arange(5.0)[:, None])
    assert wins == pytest.approx((1, stats.binomtest(5, 5).proportion_ci(method="exact").low, 1))
    losses = improvement_interval(np.arange(5.0)[:, None], np.full((5, 1), 500.0))
    assert losses == pytest.approx((0, 0, 1 - wins.low))
    twice = improvement_interval(np.full((5, 2), 500.0), np.zeros((5, 2)))
    assert twice.low == pytest.approx(stats.binomtest(10, 10).proportion_ci(method="exact").low)
    assert improvement_interval([[1.0]] * 4, [[1.0]] * 4).estimate == 0.5


def test_the_interval_of_a_mean_does_not_depend_on_how_many_resamples_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = np.random.default_rng(0).normal(size=50)
    whole = mean_interval(runs)
    monkeypatch.setattr(intervals, "AT_ONCE", 1000)  # as of some thousands of runs: several batches
    assert mean_interval(runs) == whole


def test_equal_runs_have_an_interval_without_width() -> None:
    assert mean_interval([500.0] * 5) == Interval(500, 500, 500)
    assert mean_interval([0.1] * 3, [[0.1, 0.3]]) == Interval(0.1, 0.1, 0.1)  # numpy's mean is 0.10000000000000002
    assert mean_interval([1.0, 1.0, 1.0 + 1e-15]).low <= 1


@pytest.mark.parametrize("runs", [3, 5, 7])
def test_the_interval_of_few_runs_is_students(runs: int) -> None:
    x = np.random.default_rng(1).normal(size=runs)
    half = stats.t.ppf(0.975, runs - 1) * x.std(ddof=1) / np.sqrt(runs)
    assert mean_interval(x.tolist()) == pytest.approx((x.mean(), x.mean() - half, x.mean() + half))


@pytest.mark.parametrize("runs", [3, 8, 15])
def test_others_alike_widen_the_interval_of_few_runs_as_one_more_run(runs: int) -> None:
    x = np.random.default_rng(2).normal(size=runs)
    wide, alone = [[0.0, 6.0, 9.0], [7.0]], stats.t.ppf(0.975, runs - 1) * np.sqrt(x.var(ddof=1) / runs)
    variance = (21.0 + (runs - 1) * x.var(ddof=1)) / runs  # that of 0, 6, 9 is 21
    half = stats.t.ppf(0.975, runs) * np.sqrt(variance / runs)
    assert half > alone
    assert mean_interval(x.tolist(), wide) == pytest.approx((x.mean(), x.mean() - half, x.mean() + half))
    narrow = [[0.0, 1e-6], []]
    assert mean_interval(x.tolist(), narrow) == pytest.approx((x.mean(), x.mean() - alone, x.mean() + alone))


def test_others_alike_do_not_matter_to_many_runs() -> None:
    x = np.random.default_rng(3).normal(size=16).tolist()
    assert mean_interval(x, [[0.0, 100.0]]) == mean_interval(x)


def test_three_runs_among_others_alike_cover_a_skewed_mean() -> None:
    """Agents that fail one time in four, whose spread three runs alone often miss."""
    random, hits = np.random.default_rng(9), np.zeros(2)
    for _ in range(600):
        runs, *others = np.where(random.random((6, 3)) < 0.25, -200.0, 50 * random.gamma(2, 1, (6, 3))).tolist()
        ends = [mean_interval(runs)[1:], mean_interval(runs, others)[1:]]
        hits += [low <= 0.25 * -200 + 0.75 * 100 <= high for low, high in ends]
    alone, together = hits / 600
    assert alone < 0.93 < 0.96 < together


def test_resamples_of_one_run_alone_widen_no_interval() -> None:
    _, low, high = mean_interval([0.1] * 7 + [0.7])
    assert -1 < low < high < 2


def test_two_runs_are_too_few() -> None:
    with pytest.raises(TooFewRuns, match="an interval needs at least 3 runs, but there are 2; train more seeds"):
        mean_interval([1.0, 2.0])
    with pytest.raises(TooFewRuns, match="there are 1"):
        interval(mean, np.zeros((1, 3)))


def test_the_score_interval_is_wilsons() -> None:
    # Newcombe (1998), Two-sided confidence intervals for the single proportion, table I
    result = [[round(abs(x), 4) for x in intervals.wilson(*counts)[1:]] for counts in ((81, 263), (15, 148), (0, 20))]
    assert result == [[0.2553, 0.3662], [0.0624, 0.1605], [0.0, 0.1611]]


@pytest.mark.parametrize(("accidents", "runs"), [(0, 14), (1, 20), (5, 20)])
def test_the_greatest_mean_of_accidents_is_that_of_clopper_and_pearson(accidents: int, runs: int) -> None:
    results = [3.0] * accidents + [0.0] * (runs - accidents)
    share = stats.beta.ppf(0.95, accidents + 1, runs - accidents)
    assert greatest_mean(results, worst=3.0) == pytest.approx(3 * share, abs=0.05)


@pytest.mark.parametrize("scale", [2.0**900, 2.0**-900])
@pytest.mark.parametrize("runs", [3, 10, 20])
def test_an_interval_of_huge_or_tiny_results_is_as_wide_as_of_others(scale: float, runs: int) -> None:
    """Their squares are no numbers, or 0."""
    results = np.random.default_rng(runs).exponential(size=runs)
    others = [np.arange(4.0)]
    expected = mean_interval(results.tolist(), [sample.tolist() for sample in others])
    actual = mean_interval((scale * results).tolist(), [(scale * sample).tolist() for sample in others])
    assert actual == tuple(scale * end for end in expected)
