"""Checks that trials learned something, with cures that fit the environment.

A result counts as learned if it is above the bar: the better of random actions and untrained policies, as a study's
probe found them, plus the luck of the best of as many untrained trials. Where policies differ much by luck, few results
are above it; then a training counts, too, whose own episodes have come to return more than all of these, and so do all
trials together whose mean is above theirs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ...spaces.dimension import Dimension
from ...tasks import load
from ..engine.bounds import standard_error
from ..engine.views import FailedProbeView, ProbeView
from ..options.durations import in_words
from ..statistics.aggregates import Floats
from ..statistics.tails import t_quantile
from ..storage.rows import Segment, Trial, score_of
from ..study.config import SIZED, Config
from ..study.environments import is_across
from ..study.number_text import in_digits, in_digits_alone
from ..study.objectives import DEFAULT, MINIMIZE, RETURN, objectives_of
from ..study.widening import is_far_from_one, is_sparse
from .importance import FEWEST, Measurements

Probe = ProbeView | FailedProbeView | None
EPISODES = 20  # of a result, see `tasks.evaluation`
NOTHING, EARLY = "nothing learned", "too early"  # checks
AFTER_TUNE = (NOTHING, EARLY, "one learned", "equal", "too short", "edge", "failures")  # checks that `tune` shows
LUCK = 0.05  # probability that the best of many untrained trials is above the bar
SLIGHT = 0.01  # of the distance between the baselines; smaller differences do not count
ALIKE = 0.01  # of the distance to the best result; results that differ by less are equal
PARTS, FEWEST_EPOCHS = 5, 10  # of a learning curve
RISE = 0.1  # of the curve's range, from its last but one part to the last one
SPARSE = 0.9  # share of rewards that are 0
UNEVEN = 10.0  # times that a standard deviation of observations is larger than another
SURE = 3.0  # standard errors of a rise
LEVEL, FEWEST_RISES = 0.005, 4  # of tests over trials; a test of rises has at least so many
EPISODE_RETURN, RETURN_EPISODES = "episode_return", "return_episodes"
Curve = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Finding:
    """A defect of a study, and its cure.

    Attributes:
        check: nothing learned, too early, one learned, equal, too short, edge, no effect, seeds, first rung, failures,
            idle or pruned.
        text: the defect.
        cure: the cure.
    """

    check: str
    text: str
    cure: str


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
    if not isinstance(probe, ProbeView) or objectives_of(config) != DEFAULT or is_across(config):
        return None
    random, policies = probe.random, [returns for returns in probe.untrained if returns]
    means = [statistics.fmean(returns) for returns in policies]
    if len(random) + len(means) < 3:
        return None
    levels = [*([statistics.fmean(random)] if random else []), *([statistics.median(means)] if means else [])]
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    within = [statistics.variance(returns) for returns in (random, *policies) if len(returns) > 1]
    fewest = min(episodes, statistics.median(map(len, policies or [random])))
    luck = max(math.sqrt(max(within, default=0.0) / fewest), error or 0.0)
    z = _normal_quantile((1 - LUCK) ** (1 / max(1, count)))
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


_normal_quantile = statistics.NormalDist().inv_cdf


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


def risen(probe: Probe, trials: Sequence[Trial], curves: Mapping[str, Curve]) -> set[int]:
    """Return the configurations whose training rose above random actions and untrained policies.

    The mean of the last fifth of its epochs is above that of random actions, less a standard error, since few of their
    episodes are known, and above the median untrained policy; and above the first fifth by three standard errors.
    """
    if not isinstance(probe, ProbeView):
        return set()
    means = [statistics.fmean(returns) for returns in probe.untrained if returns]
    levels = [statistics.median(means)] if means else []
    levels += [statistics.fmean(probe.random) - standard_error(probe.random)] if probe.random else []
    level = max(levels, default=math.inf)
    numbers = set()
    for trial in trials:
        points = curves.get(trial.uid, ())
        curve = np.array([values[EPISODE_RETURN] for _, values in points if EPISODE_RETURN in values])
        if len(curve) >= FEWEST_EPOCHS:
            first, *_, last = np.array_split(curve, PARTS)
            if last.mean() > level and last.mean() - first.mean() > SURE * _error(first, last):
                numbers.add(trial.configuration)
    return numbers


def together_above(probe: Probe, observed: Measurements) -> set[int]:
    """Return the configurations above the baselines, if the mean of all is.

    The mean of their last results is above that of random actions' episodes, and above that of untrained policies, in
    Welch's test at 0.5%, with the degrees of freedom of the smaller sample. One lucky policy may return as much as any
    trained one; then no single result tells that trials learned, but that all of them return so much does.
    """
    if not isinstance(probe, ProbeView) or len(set(observed.numbers.tolist())) < FEWEST:
        return set()
    ranked = sorted(zip(observed.rungs.tolist(), observed.numbers.tolist(), observed.scores.tolist(), strict=True))
    last = {number: score for _, number, score in ranked}
    scores = [*last.values()]
    policies = [statistics.fmean(returns) for returns in probe.untrained if returns]
    samples = [sample for sample in (probe.random, policies) if len(sample) > 1]
    for sample in samples:
        rise = statistics.fmean(scores) - statistics.fmean(sample)
        error = math.hypot(standard_error(scores), standard_error(sample))
        if not rise > t_quantile(1 - LEVEL, min(len(scores), len(sample)) - 1) * error:
            return set()
    level = max((statistics.fmean(sample) for sample in samples), default=math.inf)
    return {number for number, score in last.items() if score > level}


def is_early(config: Config, trials: Sequence[Trial], last: Sequence[int], curves: Mapping[str, Curve]) -> bool:
    """Return whether training ends while returns rise, so that learning may follow.

    In a study of fewer than ten epochs, no curve says so by itself. Its trials do together: the mean of the second half
    of their epochs is above that of the first half, in Student's paired test at 0.5%. The arguments are those of
    `too_short`.
    """
    if config.rungs[-1] >= FEWEST_EPOCHS:
        return any(too_short(config, trials, last, curves))
    returns = [_curve(curves.get(trial.uid, ()), RETURN, "maximize") for trial in trials]
    halves = [np.array_split(curve, 2) for curve in returns if len(curve) > 1]
    rises = np.array([second.mean() - first.mean() for first, second in halves])
    if len(rises) < FEWEST_RISES:
        return False
    error = float(rises.std(ddof=1)) / math.sqrt(len(rises))
    return bool(rises.mean() > t_quantile(1 - LEVEL, len(rises) - 1) * error)


def best_scores(observed: Measurements) -> dict[int, float]:
    """Return the best score of each configuration, on any rung."""
    best: dict[int, float] = {}
    for number, score in zip(observed.numbers.tolist(), observed.scores.tolist(), strict=True):
        best[number] = max(score, best.get(number, -math.inf))
    return best


def learned_nothing(observed: Measurements, bar: float | None, learned: Collection[int] = ()) -> bool:
    """Return whether no result is above the bar or learned otherwise."""
    return bar is not None and len(observed.scores) > 0 and float(observed.scores.max()) <= bar and not learned


def nothing_learned(
    config: Config,
    observed: Measurements,
    bar: float | None,
    probe: Probe,
    learned: Collection[int] = (),
    early: bool = False,
) -> Iterator[Finding]:
    """Find studies of which no trial, one, or all alike have learned.

    They have at least eight configurations. Without a bar, one has learned if the others' results are equal, within 1%
    of their distance to it.

    Args:
        config: configuration of the study.
        observed: its results.
        bar: see `bar_of`.
        probe: probe of its environment.
        learned: configurations that have learned, whatever their results, see `risen` and `together_above`.
        early: whether training ends while returns rise, see `is_early`.
    """
    best = best_scores(observed)
    if len(best) < FEWEST:
        return
    top, *others = sorted(best.values(), reverse=True)
    number = max(best, key=lambda trial: best[trial])
    sign = -1 if next(iter(objectives_of(config).values())) == MINIMIZE else 1
    if learned_nothing(observed, bar, learned):
        assert probe is not None
        baseline = probe.baselines.get("random")
        low, high = in_digits([sign * top, baseline.value if baseline else None])
        than = f" ({high} for random actions)" if high else ""
        text = f"none of {len(best)} trials is better than an untrained policy beyond chance: the best has {low}{than}"
        if early:
            rises = f"it is too early to say whether anything is learned: {text}, but returns still rise"
            yield Finding(EARLY, rises, longer(config))
        else:
            yield Finding(NOTHING, text, cures(config, probe))
    elif all(np.ptp(observed.scores[observed.rungs == rung]) == 0 for rung in np.unique(observed.rungs)):
        solved = "train for fewer epochs (--epochs), or compare by another --objective"
        cure = solved if bar is not None else f"if none can be better, {solved}; otherwise {cures(config, probe)}"
        yield Finding("equal", f"all results on each rung are equal, at best {in_digits_alone(sign * top)}", cure)
    elif {*learned} - {number}:
        return  # further trials have learned, whatever their results
    elif others[0] <= bar if bar is not None else others[0] - others[-1] <= ALIKE * (top - others[0]):
        one, next_best = in_digits([sign * top, sign * others[0]])
        text = f"only trial {number} of {len(best)} learned anything: it has {one}, and the next one {next_best}"
        cure = f"make sure that it is no luck (rekindle confirm), and search near it; {cures(config, probe)}"
        yield Finding("one learned", text, cure)


def too_short(
    config: Config, trials: Sequence[Trial], last: Sequence[int], curves: Mapping[str, Curve]
) -> Iterator[Finding]:
    """Find studies whose returns still rise when training ends.

    Of most trials with a result on the last rung, and the best one, the mean of the last fifth of the learning curve is
    above that of the fifth before by 10% of the curve's range, and by two standard errors.

    Args:
        config: configuration of the study.
        trials: trials with one seed each.
        last: configurations with a result on the last rung, best first.
        curves: metrics of all tasks by uid.
    """
    ((objective, direction), *_) = objectives_of(config).items()
    places = {number: index for index, number in enumerate(last)}
    of: dict[int, list[Floats]] = {}
    for trial in trials:
        if trial.configuration in places:
            of.setdefault(trial.configuration, []).append(_curve(curves.get(trial.uid, ()), objective, direction))
    rises = [any(_rises(curve) for curve in of[number]) for number in last if number in of]
    if not rises or not rises[0] or 2 * sum(rises) <= len(rises):
        return
    high = config.rungs[-1]
    yield Finding(
        "too short",
        f"results still rise when training ends, in {sum(rises)} of {len(rises)} trials that trained to epoch {high}",
        f"train longer (rekindle extend STUDY --epochs {3 * high}, or {_longer_option(config)} for a new study)",
    )


def _curve(points: Curve, objective: str, direction: str) -> Floats:
    """Return the metric that has more points, higher is better."""
    names = [objective, *([EPISODE_RETURN] if objective == RETURN else [])]
    columns = [[values[name] for _, values in points if name in values] for name in names]
    return (-1.0 if direction == MINIMIZE else 1.0) * np.array(max(columns, key=len))


def _rises(curve: Floats) -> bool:
    if len(curve) < FEWEST_EPOCHS:
        return False
    parts = np.array_split(curve, PARTS)
    means = np.array([part.mean() for part in parts])
    rise = means[-1] - means[-2]
    return bool(rise > RISE * np.ptp(means) and rise > 2 * _error(parts[-2], parts[-1]))


def _error(one: Floats, other: Floats) -> float:
    """Return the standard error of the difference of two parts' means.

    Differences of successive epochs tell the scatter, to which a trend adds little.
    """
    scatter = np.concatenate([np.diff(one), np.diff(other)]).std() / math.sqrt(2)
    return float(scatter * math.sqrt(1 / len(one) + 1 / len(other)))


def longer(config: Config) -> str:
    """Return how a new study trains for three times as long."""
    return f"train longer ({_longer_option(config)}{' for a new study' if SIZED in config.options else ''})"


def _longer_option(config: Config) -> str:
    """Return the option of a study that is three times as long."""
    if SIZED in config.options:
        return f"--budget {in_words(3 * config.options[SIZED]['seconds'])}"
    return f"--epochs {config.rungs[0]}:{3 * config.rungs[-1]}"


def cures(config: Config, probe: Probe) -> str:
    """Return what may help trials of this study to learn."""
    view = probe if isinstance(probe, ProbeView) else None
    observations, rewards = (view.observations, view.rewards) if view else (None, None)
    actions = view.actions if view else ""
    zeros = 1.0 if view is None or view.zero_rewards is None else view.zero_rewards
    declared: Mapping[str, Dimension] = {}
    with suppress(ValueError):  # the task may be of a package that is not installed here
        declared = load(config.task).learner.hyperparameters.flat()
    off = {name for name, switch in declared.items() if switch.default is False and not config.fixed.get(name)}
    off -= {*config.open}
    sparse = view is None or zeros >= SPARSE or is_sparse(view.to_json())
    exploration = ["use_sde"] * (actions == "Box") + ["rnd.use"] * sparse
    cures = []
    if view and zeros == 1:
        cures.append("make sure that the environment gives rewards: a probe saw only zeros")
    if observations and observations.high == 0:
        cures.append("make sure that observations differ: a probe saw only equal ones")
    single = {"rnd.use": " --set n_step=1"} if "n_step" in declared else {}  # its rewards are for single steps
    small_entropy = " --set entropy.alpha=0.1" if "entropy.alpha" in declared else ""  # 1 outweighs scaled rewards
    if ways := [f"--set {name}=true{single.get(name, '')}" for name in exploration if name in off]:
        cures.append(f"explore more ({', '.join(ways)})")
    if observations and "normalize_obs" in off:
        low, high = observations.low, observations.high
        if is_far_from_one(observations.to_json()) or (low is not None and high is not None and high > UNEVEN * low):
            cures.append("scale observations (--set normalize_obs=true)")
    if rewards and "scale_reward" in off and is_far_from_one(rewards.to_json()):
        cures.append(f"scale rewards (--set scale_reward=true{small_entropy})")
    cures.append(longer(config))
    others = {"Box": ("sac", "ppo"), "Discrete": ("dqn", "ppo")}.get(actions, ())
    chooses = "algorithm" in config.searched.flat()
    if not chooses and (other := next((name for name in others if name != config.task), None)):
        cures.append(f"try another algorithm (rekindle tune {other} ...)")
    return ", or ".join([", ".join(cures[:-1]), cures[-1]]) if len(cures) > 1 else cures[0]
