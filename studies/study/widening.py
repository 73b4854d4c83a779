"""Hyperparameters that a study searches because of its probe.

What only few environments need is rare in the search (a prior probability of 1 / 4), so that the others pay little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...spaces import unflatten
from ...spaces.ranges import NearOne
from .config import WIDENS, Config
from .searched import open_space

if TYPE_CHECKING:
    from ...tasks.task import Task

FEWEST = 3  # episodes of random actions that say whether returns differ
SAME = 0.9  # share of them with one return, from which rewards are sparse
FAR = 10.0  # times that numbers are larger or smaller than 1
RARELY, OFTEN = "choices({False: 3, True: 1})", "choices([False, True])"
SCALED = {"normalize_obs": "observations", "scale_reward": "rewards"}  # what these hyperparameters scale
OF_IMAGES, WHITE = "model.largest_pixel", 255  # the hyperparameter that scales them, and its default
FURTHER = 0.1  # the smallest 1 - gamma times the longest episode's steps: beyond, discounts change little


def is_sparse(probe: Mapping[str, Any]) -> bool:
    """Return whether random actions hardly ever earn a reward that differs.

    Args:
        probe: results of `tasks.probing.probe`.
    """
    if probe.get("zero_sum"):
        return False
    returns = probe["random"]
    if len(returns) < FEWEST:
        return probe["zero_rewards"] == 1
    return returns.count(statistics.mode(returns)) >= SAME * len(returns)


def is_far_from_one(moments: Mapping[str, float | None] | None) -> bool:
    """Return whether numbers are larger than 10, or all smaller than 0.1.

    Args:
        moments: their largest mean and standard deviation, `mean` and `high`, where None stands for a number that is
            not finite; None if they are not known.
    """
    if moments is None:
        return False
    largest = max(math.inf if moments[name] is None else abs(moments[name] or 0.0) for name in ("mean", "high"))
    return largest > FAR or 0 < largest < 1 / FAR


def is_dark(largest_pixel: int | None) -> bool:
    """Return whether all numbers of images are small, but not all 0.

    Networks see none as more than 0.1.

    Args:
        largest_pixel: their largest number, of 255; None without images.
    """
    return largest_pixel is not None and 0 < largest_pixel <= WHITE / FAR


def scaling_values(config: Config, probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters that scale what is far from 1.

    A warm start decides how observations are seen.
    """
    if probe["slow"] is not None:  # what it found depends on the machine
        return {}
    values: dict[str, Any] = {name: True for name, scaled in SCALED.items() if is_far_from_one(probe[scaled])}
    if is_dark(probe.get("largest_pixel")):
        values[OF_IMAGES] = probe["largest_pixel"]
    is_warm = "warm_start" in config.options
    return {name: value for name, value in values.items() if name == "scale_reward" or not is_warm}


def widened(config: Config, algorithm: type[Task], probe: Mapping[str, Any]) -> dict[str, str]:
    """Return the priors that a study changes after its probe.

    Names are dotted. Where rewards are sparse, curiosity is searched (random network distillation, Burda et al. 2019,
    arXiv:1810.12894). Where observations or rewards are far from 1, their scaling is, so that every other trial scales.
    Where episodes are longer than the horizon of the largest discount factor, larger ones are.

    Args:
        config: configuration of a study without trials.
        algorithm: class of its tasks.
        probe: results of `tasks.probing.probe`.
    """
    from ...tasks.envs import EnvSpec  # imports gymnasium

    if not config.options.get(WIDENS) or probe["slow"] is not None:  # as in `scaling_values`
        return {}
    env, fixed, searched = EnvSpec.of(config.env), unflatten(config.fixed), {*config.open}
    priors, before = dict[str, str](), open_space(algorithm, env, fixed, {}).priors()
    useful = {"rnd.use": RARELY} if is_sparse(probe) else {}
    for name, value in scaling_values(config, probe).items():
        useful[name] = OFTEN if value is True else f"choices([{value}, {WHITE}])"
    for name in algorithm.learner.open_space(env, fixed).flat():
        switch = next((switch for switch in useful if f".{name}".endswith(f".{switch}")), None)
        if switch is None or name in searched:
            continue
        group = name.removesuffix(switch)  # may be an algorithm that the study left out
        if any(path.startswith(group) for path in config.space):
            priors[name] = useful[switch]
    furthest = 10 ** math.floor(math.log10(FURTHER / max(probe["lengths"], default=1)))  # 1 - gamma
    for name, dimension in config.searched.flat().items():
        if f".{name}".endswith(".gamma") and isinstance(dimension, NearOne) and furthest < 1 - dimension.high:
            priors[name] = f"near_one({dimension.low}, {1 - furthest})"
    wider = open_space(algorithm, env, fixed, priors).priors()
    return {name: text for name, text in wider.items() if before.get(name) != text}
