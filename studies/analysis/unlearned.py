"""Judgement of whether trials learned more than untrained policies.

A result counts as learned if it is above the bar: the better of random actions and untrained policies, as a study's
probe found them, plus the luck of the best of as many untrained trials. Where policies differ much by luck, few results
are above it; then a training counts, too, whose own episodes have come to return more than all of these
(`rising.risen`), and so do all trials together whose mean is above theirs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.bounds import standard_error
from ..engine.views import ConfirmationView, Probe, ProbeView
from ..statistics.tails import t_quantile
from ..storage.rows import Segment, Trial, score_of
from ..study.config import SIZED, Config
from ..study.environments import is_across
from ..study.number_text import in_digits, in_digits_alone
from ..study.objectives import DEFAULT, MINIMIZE, objectives_of
from .cures import Finding, cures, longer
from .importance import FEWEST, Measurements

EPISODES = 20  # of a result, see `tasks.evaluation`
NOTHING, EARLY, UNJUDGED = "nothing learned", "too early", "not judged"  # checks
# Checks that `tune` shows.
AFTER_TUNE = (NOTHING, EARLY, UNJUDGED, "one learned", "equal", "too short", "edge", "failures")
LUCK = 0.05  # probability that the best of many untrained trials is above the bar
SLIGHT = 0.01  # of the distance between the baselines; smaller differences do not count
ALIKE = 0.01  # of the distance to the best result; results that differ by less are equal
LEVEL = 0.005  # of tests over trials
LONGER = 10  # times as many steps as those of a probe that were too few
ENOUGH = 3  # episodes of random actions and untrained policies together, of which a bar follows
EPISODE_RETURN, RETURN_EPISODES = "episode_return", "return_episodes"
Curve = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Baselines:
    """Returns of what has not learned; none without a probe that succeeded.

    Attributes:
        random: returns of random actions.
        policies: returns of each untrained policy that has finished an episode.
    """

    random: Sequence[float]
    policies: Sequence[Sequence[float]]

    @classmethod
    def of(cls, probe: Probe) -> Baselines:
        """Return the baselines in a probe."""
        if not isinstance(probe, ProbeView):
            return cls((), ())
        return cls(probe.random, [returns for returns in probe.untrained if returns])

    @property
    def means(self) -> list[float]:
        """Mean return of each untrained policy."""
        return [statistics.fmean(returns) for returns in self.policies]

    @property
    def level(self) -> float:
        """The larger of random actions' mean and the best untrained policy's."""
        return max([*self.means, *([statistics.fmean(self.random)] if self.random else [])], default=math.inf)


def bar_of(
    config: Config, probe: Probe, count: int, episodes: float = EPISODES, error: float | None = None
) -> float | None:
    """Return the score above which a result is learned, or None.

        min(max(mean random, median untrained) + z s, max over x = random, untrained of max(x) + (z - m(len(x))) s')

    z is the normal quantile of (1 - LUCK)^(1 / count), seldom exceeded by the best of `count` equal results, and
    m(n) that of 0.5^(1 / n), the median of the best of n. s^2 is the variance of a result: that between untrained
    policies, and that between episodes, divided by the number of them that measured the result or a policy, or the
    result's own. For s', policies differ by no more than the best two, as some returns have an end. No bar is below the
    best untrained policy.

    Args:
        config: configuration of the study.
        probe: probe of its environment.
        count: number of results.
        episodes: number of episodes that measured the best result.
        error: its standard error; None if it is not known.
    """
    baselines = Baselines.of(probe)
    random, policies, means = baselines.random, baselines.policies, baselines.means
    if objectives_of(config) != DEFAULT or is_across(config) or len(random) + len(means) < ENOUGH:
        return None
    levels = [*([statistics.fmean(random)] if random else []), *([statistics.median(means)] if means else [])]
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    luck = _error(baselines, episodes, error)
    z = _luckiest(count)
    results = [
        value
        for returns in policies
        for value in ([statistics.fmean(returns)] if len(returns) <= episodes else returns)
    ]
    ends = []
    for values in filter(None, (random, results)):
        second, first = sorted([*values, -math.inf])[-2:]
        beyond = z - _normal_quantile(0.5 ** (1 / len(values)))
        ends.append(first + max(0.0, beyond) * math.hypot(min(spread, first - second), luck))
    by_luck = min(max(levels) + z * math.hypot(spread, luck), max(ends))
    return max(by_luck, *means, max(levels) + SLIGHT * (max(levels) - min(levels)))


def confirmed_bar(confirmation: ConfirmationView | None, bar: float | None, probe: Probe) -> float | None:
    """Return the bar of a study that may be confirmed.

    The search has not chosen the fresh seeds, so no luck of the best of many is in them. If the 95% interval of a
    candidate's mean on these is above random actions and all untrained policies, a result above both is learned.

    Args:
        confirmation: complete confirmation of the study, if it has one.
        bar: see `bar_of`.
        probe: probe of the environment.
    """
    level = Baselines.of(probe).level
    estimates = [candidate.estimate for candidate in confirmation.candidates] if confirmation is not None else []
    is_above = any(estimate is not None and estimate.low > level for estimate in estimates)
    return min(bar, level) if bar is not None and is_above else bar


_normal_quantile = statistics.NormalDist().inv_cdf


def _luckiest(count: int) -> float:
    """Return the normal quantile that the best of `count` results seldom exceeds."""
    return _normal_quantile((1 - LUCK) ** (1 / max(1, count)))


def _error(baselines: Baselines, episodes: float, error: float | None) -> float:
    """Return the larger standard error of a result and an untrained policy.

    The arguments are those of `bar_of`.
    """
    random, policies = baselines.random, baselines.policies
    within = [statistics.variance(returns) for returns in (random, *policies) if len(returns) > 1]
    fewest = min(episodes, statistics.median(map(len, policies or [random])))
    return max(math.sqrt(max(within, default=0.0) / fewest), error or 0.0)


def is_ahead(probe: Probe, best: float, count: int, episodes: float = EPISODES, error: float | None = None) -> bool:
    """Return whether the best result is clearly above all baselines.

    It is above the interval of random actions; and above these and the best untrained policy by more than the errors of
    `count` results explain, if policies did not differ (LUCK). As they do, it may not be above the bar: then it is a
    lucky one, or has begun to learn.

    Args:
        probe: probe of the environment.
        best: the best result.
        count: number of results.
        episodes: number of episodes that measured it.
        error: its standard error; None if it is not known.
    """
    baselines = Baselines.of(probe)
    if probe is None or not baselines.policies:
        return False
    view = probe.baselines.get("random")
    high = max(baselines.random, default=-math.inf) if view is None or view.high is None else view.high
    return best > high and best > baselines.level + _luckiest(count) * _error(baselines, episodes, error)


def measured_best(
    trials: Sequence[Trial], segments: Sequence[Segment], curves: Mapping[str, Curve]
) -> tuple[float, float | None]:
    """Return the episodes of the best result, and its standard error.

    The error is None if it is not known.

    Args:
        trials: trials with one seed each.
        segments: their segments.
        curves: metrics of all tasks by uid.
    """
    uids = {trial.number: trial.uid for trial in trials}
    done = [row for row in segments if row.score is not None]
    if not done:
        return EPISODES, None
    best = max(done, key=score_of)
    values = dict(curves.get(uids[best.number], ())).get(best.epochs, {})
    return values.get(RETURN_EPISODES, EPISODES), best.eval_error


def together_above(probe: Probe, observed: Measurements) -> set[int]:
    """Return the configurations above the baselines, if the mean of all is.

    The mean of their last results is above that of random actions' episodes, and above that of untrained policies, in
    Welch's test at 0.5%, with the degrees of freedom of the smaller sample. One lucky policy may return as much as any
    trained one; then no single result tells that trials learned, but that all of them return so much does.
    """
    if len(set(observed.numbers.tolist())) < FEWEST:
        return set()
    ranked = sorted(zip(observed.rungs.tolist(), observed.numbers.tolist(), observed.scores.tolist(), strict=True))
    last = {number: score for _, number, score in ranked}
    scores, baselines = [*last.values()], Baselines.of(probe)
    samples = [sample for sample in (baselines.random, baselines.means) if len(sample) > 1]
    for sample in samples:
        rise = statistics.fmean(scores) - statistics.fmean(sample)
        error = math.hypot(standard_error(scores), standard_error(sample))
        if not rise > t_quantile(1 - LEVEL, min(len(scores), len(sample)) - 1) * error:
            return set()
    level = max((statistics.fmean(sample) for sample in samples), default=math.inf)
    return {number for number, score in last.items() if score > level}


def best_scores(observed: Measurements) -> dict[int, float]:
    """Return the best score of each configuration, on any rung."""
    best: dict[int, float] = {}
    for number, score in zip(observed.numbers.tolist(), observed.scores.tolist(), strict=True):
        best[number] = max(score, best.get(number, -math.inf))
    return best


def learned_nothing(observed: Measurements, bar: float | None, learned: Collection[int] = ()) -> bool:
    """Return whether no result is above the bar or learned otherwise."""
    return bar is not None and len(observed.scores) > 0 and float(observed.scores.max()) <= bar and not learned


@dataclass(frozen=True)
class Signs:
    """Signs of learning besides results above the bar.

    Attributes:
        learned: configurations that have learned, whatever their results, see `rising.risen` and `together_above`.
        early: whether training ends while returns rise, see `rising.is_early`.
        ahead: whether the best is clearly above all baselines, see `is_ahead`.
        drawn: late return of a training's own episodes, see `rising.drawn_return`.
        rewarded: whether trainings had rewards, if the probe had none.
    """

    learned: Collection[int] = ()
    early: bool = False
    ahead: bool = False
    drawn: float | None = None
    rewarded: bool = False


NO_SIGNS = Signs()


def nothing_learned(
    config: Config, observed: Measurements, bar: float | None, probe: Probe, signs: Signs = NO_SIGNS
) -> Iterator[Finding]:
    """Find studies of which no trial, one, or all alike have learned.

    They have at least eight configurations. Without a bar, one has learned if the others' results are equal, within 1%
    of their distance to it.

    Args:
        config: configuration of the study.
        observed: its results.
        bar: see `bar_of`.
        probe: probe of its environment.
        signs: signs of learning.
    """
    best = best_scores(observed)
    if len(best) < FEWEST:
        return
    help_to_learn = cures(config, probe, signs.rewarded)
    if learned_nothing(observed, bar, signs.learned):
        text = _beside_baselines(config, best, probe)
        if signs.early or signs.ahead:
            yield _too_early(config, text, len(best), signs)
        elif bar is not None and signs.drawn is not None and signs.drawn > bar:
            yield _by_drawn_actions(config, text, signs.drawn)
        else:
            yield Finding(NOTHING, text, help_to_learn)
    elif all(np.ptp(observed.scores[observed.rungs == rung]) == 0 for rung in np.unique(observed.rungs)):
        text = f"all results on each rung are equal, at best {in_digits_alone(_sign(config) * max(best.values()))}"
        solved = "train for fewer epochs (--epochs), or compare by another --objective"
        cure = solved if bar is not None else f"if none can be better, {solved}; otherwise {help_to_learn}"
        yield Finding("equal", text, cure)
    elif not {*signs.learned} - {max(best, key=lambda number: best[number])}:
        yield from _only_one(config, best, bar, help_to_learn)


def _sign(config: Config) -> int:
    """Return the sign that turns scores into values of the first objective."""
    return -1 if next(iter(objectives_of(config).values())) == MINIMIZE else 1


def _beside_baselines(config: Config, best: Mapping[int, float], probe: Probe) -> str:
    """Return that no result is better than the baselines."""
    assert probe is not None  # without one there is no bar
    baseline, policies = probe.baselines.get("random"), Baselines.of(probe).means
    luckiest = max(policies) if len(policies) > 1 else None
    values = [_sign(config) * max(best.values()), baseline.value if baseline else None, luckiest]
    result, *others = in_digits(values)
    names = ("random actions", f"the best of {len(policies)} untrained policies")
    compared = ", ".join(f"{value} for {name}" for value, name in zip(others, names, strict=True) if value)
    return f"none of {len(best)} trials is better than an untrained policy beyond chance: the best has {result}" + (
        f" ({compared})" if compared else ""
    )


def _too_early(config: Config, text: str, trials: int, signs: Signs) -> Finding:
    """Return a finding about a study that shows signs of learning.

    Args:
        config: its configuration.
        text: its best result beside the baselines.
        trials: number of its configurations.
        signs: signs of learning, one of `early` and `ahead` at least.
    """
    reasons = ["returns still rise"] * signs.early + ["that is clearly more than all of these"] * signs.ahead
    so_far = f"it is too early to say whether anything is learned: {text}, but {' and '.join(reasons)}"
    cure = longer(config)
    if signs.ahead:
        more = "" if SIZED in config.options else f"try more configurations (--trials {2 * trials}), "
        cure = f"{cure}, {more}or measure the best ones on fresh seeds (rekindle confirm STUDY)"
    return Finding(EARLY, so_far, cure)


def _by_drawn_actions(config: Config, text: str, drawn: float) -> Finding:
    """Return a finding about a study that learned by drawn actions.

    Args:
        config: its configuration.
        text: its best result beside the baselines.
        drawn: see `Signs`.
    """
    more = f"but a training's own last episodes, whose actions are drawn, return {in_digits_alone(drawn)}"
    compare = "compare and use policies by drawn actions, since greedy ones may get stuck"
    cure = f"{compare} (--objective return_stochastic; rekindle evaluate --stochastic), or {longer(config)}"
    return Finding(NOTHING, f"{text}, {more}", cure)


def _only_one(config: Config, best: Mapping[int, float], bar: float | None, help_to_learn: str) -> Iterator[Finding]:
    """Find studies of which the best trial alone has learned.

    Args:
        config: configuration of the study.
        best: best score of each configuration.
        bar: see `nothing_learned`.
        help_to_learn: what may help the others.
    """
    (number, top), (_, second), *_, (_, last) = sorted(best.items(), key=lambda item: -item[1])
    if second <= bar if bar is not None else second - last <= ALIKE * (top - second):
        result, next_best = in_digits([_sign(config) * top, _sign(config) * second])
        text = f"only trial {number} of {len(best)} learned anything: it has {result}, and the next one {next_best}"
        cure = f"make sure that it is no luck (rekindle confirm), and search near it; {help_to_learn}"
        yield Finding("one learned", text, cure)


def not_judged(config: Config, observed: Measurements, probe: Probe) -> Iterator[Finding]:
    """Find studies whose probe is too short to judge what is learned.

    They have at least eight configurations, as those that are judged.

    Args:
        config: configuration of the study.
        observed: its results.
        probe: probe of its environment.
    """
    baselines = Baselines.of(probe)
    episodes, policies = len(baselines.random), len(baselines.policies)
    if probe is None or objectives_of(config) != DEFAULT or is_across(config) or episodes + policies >= ENOUGH:
        return
    if len(best_scores(observed)) < FEWEST:
        return
    text = "whether trials are better than an untrained policy is not judged"
    if not isinstance(probe, ProbeView):
        yield Finding(UNJUDGED, f"{text}: {probe.text}", "see what random actions return (rekindle probe ENV)")
        return
    why = (
        f"{ENOUGH} episodes are needed, by random actions and different untrained policies, but the {probe.steps:,} "
        f"steps of the probe ended {episodes} by random actions and {policies} by untrained policies"
    )
    steps = max(2 * EPISODES * max(probe.lengths, default=0), LONGER * probe.steps)
    yield Finding(UNJUDGED, f"{text}: {why}", f"compare with a longer probe (rekindle probe ENV --steps {steps})")
