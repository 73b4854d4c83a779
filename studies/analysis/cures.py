"""Defects of studies, and cures that fit the environment."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...spaces.dimension import Dimension
from ...tasks import load
from ..engine.views import Probe, ProbeView
from ..options.durations import in_words
from ..study.config import SIZED, Config
from ..study.widening import is_far_from_one, is_sparse

SPARSE = 0.9  # share of rewards that are 0
UNEVEN = 10.0  # times that a standard deviation of observations is larger than another


@dataclass(frozen=True)
class Finding:
    """A defect of a study, and its cure.

    Attributes:
        check: nothing learned, too early, not judged, one learned, equal, too short, edge, no effect, seeds,
            first rung, failures, idle or pruned.
        text: the defect.
        cure: the cure.
    """

    check: str
    text: str
    cure: str


def longer(config: Config) -> str:
    """Return how a new study trains for three times as long."""
    return f"train longer ({longer_option(config)}{' for a new study' if SIZED in config.options else ''})"


def longer_option(config: Config) -> str:
    """Return the option of a study that is three times as long."""
    if SIZED in config.options:
        return f"--budget {in_words(3 * config.options[SIZED]['seconds'])}"
    return f"--epochs {config.rungs[0]}:{3 * config.rungs[-1]}"


def less_misled(config: Config, epochs: int, later: int) -> str:
    """Return how a new study prunes less by an early rung.

    Args:
        config: configuration of a study that the rung misled.
        epochs: epochs of the rung.
        later: epochs of a later one.
    """
    if SIZED in config.options:  # with --epochs, algorithms would compete for equal steps, not for equal time
        return f"in a new study, compare after more steps ({longer_option(config)})"
    last = config.rungs[-1]
    first = later if later < last else round(math.sqrt(epochs * last))
    compare = f"compare later (--epochs {first}:{last}), or " if epochs < first < last else ""
    return f"in a new study, {compare}prune no trial (--scheduler none)"


def _memory(config: Config, declared: Collection[str]) -> str:
    """Return options that give policies a memory; "" if they have one."""
    if "algorithm" not in declared:
        name, options = "model.memory", ""
    else:
        task = config.fixed.get("algorithm", "ppo")
        name, options = f"{task}.model.memory", f"--set algorithm={task} "
    memoryless = name in declared and name not in config.open and config.fixed.get(name, "none") == "none"
    return f"{options}--set {name}=lstm" if memoryless else ""


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
    if zeros < 1 and not (observations and observations.high == 0) and (memory := _memory(config, declared)):
        cures.append(f"give it a memory, if earlier observations matter ({memory})")
    return ", or ".join([", ".join(cures[:-1]), cures[-1]]) if len(cures) > 1 else cures[0]
