"""Portfolios: complementary configurations that the first trials of a study try.

They were chosen from recorded trainings so that in each environment one of them is good, as in auto-sklearn 2 (Feurer
et al. 2022, arXiv:2007.04074). `benchmarks/portfolio.py` chooses them, and describes the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ...spaces import SpaceError, flatten
from .config import OPENS, SIZED, Config

if TYPE_CHECKING:
    from ...tasks.task import Task

FEWEST = 8  # trials of a study with a portfolio
MINOR = 0.01  # gain of a configuration that gives way to those of other algorithms
SMALL_ENTROPY = 0.1  # initial coefficient of SAC's entropy where rewards are scaled, which 1 would outweigh


@cache
def _portfolios() -> Mapping[str, Mapping[str, Any]]:
    """Return the portfolios by task, those from recordings in most environments first."""
    content: Mapping[str, Mapping[str, Any]]
    content = json.loads(files(__package__).joinpath("portfolio.json").read_text(encoding="utf-8"))
    return content


def portfolio(task: str) -> Sequence[Mapping[str, Any]]:
    """Return the portfolio of a task, the defaults first.

    Hyperparameters have dotted names. Without a portfolio it is empty.
    """
    configurations: Sequence[Mapping[str, Any]] = _portfolios().get(task, {}).get("configurations", [])
    return configurations


def opening(algorithm: type[Task], env: Any) -> Sequence[Mapping[str, Any]]:
    """Return configurations for the first trials of a study, in their order.

    Where the study chooses among algorithms, the defaults of each come first, then the others of each portfolio, and
    last those of them that were worth little.
    """
    starts = algorithm.starts(env)
    if not starts:
        return portfolio(algorithm.name)
    names = {algorithm.chosen(env, start)[0].name for start in starts}
    others = [
        (gain < MINOR, algorithm.named(name, values))
        for name, recorded in _portfolios().items()
        if name in names
        for gain, values in zip(recorded["gains"], recorded["configurations"][1:], strict=True)
    ]
    return [*starts, *(values for _, values in sorted(others, key=lambda other: other[0]))]


def portfolio_option(config: Config, algorithm: type[Task], repeats: int) -> dict[str, Any]:
    """Return the option of a study that tries a portfolio, or {}.

    At most half of the trials are from it. Where the study chooses among algorithms, all are that repeat no others,
    since a result or two of an algorithm teach a sampler little; but in a study that is given time alone, half if that
    is room for all algorithms, since its size follows from that. Studies of a single algorithm with less than FEWEST
    trials have none. Hyperparameters that the user fixed, or that have no effect in the environment, keep the study's
    values. Others may be beyond what is searched.

    Args:
        config: the study's configuration.
        algorithm: class of its tasks.
        repeats: number of its trials that repeat others.
    """
    size, starts = config.trials[0], algorithm.starts(config.env)
    trials: dict[str, dict[str, Any]] = {}
    for start in starts:
        trials |= _trial(config, algorithm, start)
    if len(trials) < 2 and size < FEWEST:
        return {}
    half = size // 2
    fills = len(trials) > (half if SIZED in config.options else 1)
    most = max(size - repeats, len(trials)) if fills else half
    for values in opening(algorithm, config.env)[len(starts) :]:
        if len(trials) < most:
            trials |= _trial(config, algorithm, values)
    first_trials = [*trials.values()][:size]
    return _option(first_trials, size) if len(first_trials) > 1 else {}


def scaling_option(config: Config, algorithm: type[Task], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the portfolio that scales what a probe found far from 1.

    The study's portfolio keeps its first trial, the defaults, and its others use these values; where there is none, it
    becomes the defaults without and with these. {} means that nothing changes.

    Args:
        config: configuration of a study without trials, which searches the hyperparameters.
        algorithm: class of its tasks.
        scaling: see `widening.scaling_values`.
    """
    if not scaling or not config.options.get(OPENS):
        return {}
    defaults, *others = config.portfolio or ({}, {})
    values_of_others = [_scaling(config, algorithm, other, scaling) for other in others]
    if not any(values_of_others):
        return {}
    trials = _trial(config, algorithm, defaults)
    for other, values in zip(others, values_of_others, strict=True):
        trials |= _trial(config, algorithm, {**other, **values})
    return _option([*trials.values()], config.trials[0])


def _scaling(
    config: Config, algorithm: type[Task], hyperparameters: Mapping[str, Any], scaling: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the searched values that scale in a trial, by dotted name."""
    name = algorithm.chosen(config.env, {**config.fixed, **hyperparameters})[0].name
    values = dict(scaling)
    if "scale_reward" in values:
        values["entropy.alpha"] = SMALL_ENTROPY
    return {path: value for path, value in algorithm.named(name, values).items() if path in config.open}


def _option(trials: Sequence[Mapping[str, Any]], size: int) -> dict[str, Any]:
    """Return the option of a study with these first trials.

    Half of them train to the end, at most a quarter of the study's trials, and at least two.

    Args:
        trials: their hyperparameters, by dotted name.
        size: number of the study's trials.
    """
    digest = hashlib.sha256(json.dumps(trials, sort_keys=True).encode()).hexdigest()[:16]
    finishers = max(2, -(-min(2 * len(trials), size) // 4))
    return {"portfolio": {"digest": digest, "trials": trials, "finishers": finishers}}


def _trial(config: Config, algorithm: type[Task], hyperparameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a trial's hyperparameters by its uid.

    {} means that they do not fit the study.
    """
    from ...spaces.drivers.to_optuna import params  # imports optuna
    from ...tasks.envs import EnvSpec  # imports gymnasium

    left_out = {*config.fixed, *algorithm.learner.without_effect(EnvSpec.of(config.env), config.fixed)}
    searched = {name: value for name, value in hyperparameters.items() if name not in left_out}
    try:
        values = flatten(config.searched.decide(lambda path, dimension: searched.get(path, dimension.default)))
        params(config.searched, values)
        values = {**searched, **values}
        return {config.identity(algorithm, {**config.fixed, **values}).uid: values}
    except (SpaceError, ValueError):
        return {}
