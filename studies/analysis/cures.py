"""Defects of studies, and cures that fit the environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...spaces.dimension import Dimension
from ...tasks import load
from ..engine.views import Probe, ProbeView
from ..options.durations import in_words
from ..study.config import SIZED, Config
from ..study.widening import is_far_from_one, is_sparse

SPARSE = 0.9  # share of rewards that are 0
HINDSIGHT = " --set replay.relabel=future"
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


@dataclass(frozen=True)
class _Unlearned:
    """A study that learns too little, and what its probe has shown.

    Attributes:
        config: its configuration.
        view: its probe; None if it failed or there is none.
        declared: hyperparameters of its task, by name; empty if the task's package is not installed here.
        rewarded: whether trainings had rewards.
    """

    config: Config
    view: ProbeView | None
    declared: Mapping[str, Dimension]
    rewarded: bool

    @classmethod
    def of(cls, config: Config, probe: Probe, rewarded: bool) -> _Unlearned:
        """Read the hyperparameters that the task declares."""
        declared: Mapping[str, Dimension] = {}
        with suppress(ValueError):
            declared = load(config.task).learner.hyperparameters.flat()
        return cls(config, probe if isinstance(probe, ProbeView) else None, declared, rewarded)

    @property
    def zeros(self) -> float:
        """Share of rewards that are 0; 1 if it is not known."""
        return 1.0 if self.view is None or self.view.zero_rewards is None else self.view.zero_rewards

    @property
    def is_blind(self) -> bool:
        """True if all observations are equal."""
        return self.view is not None and self.view.observations is not None and self.view.observations.high == 0

    def is_off(self, switch: str) -> bool:
        """Return whether a switch exists that is off and not searched."""
        declared = self.declared.get(switch)
        off = declared is not None and declared.default is False and not self.config.fixed.get(switch)
        return off and switch not in self.config.open

    def repairs(self) -> Iterator[str]:
        """Yield what the environment lacks."""
        if self.view is not None and self.zeros == 1 and not self.rewarded:
            yield "make sure that the environment gives rewards: a probe saw only zeros"
        if self.is_blind:
            yield "make sure that observations differ: a probe saw only equal ones"

    def exploration(self) -> Iterator[str]:
        """Yield ways to explore more, in one cure."""
        sparse = self.view is None or self.zeros >= SPARSE or is_sparse(self.view.to_json())
        continuous = self.view is not None and self.view.actions == "Box"
        single_steps = " --set n_step=1" if "n_step" in self.declared else ""  # curiosity rewards single steps
        ways = []
        if continuous and self.is_off("use_sde"):
            ways.append("--set use_sde=true")
        if sparse and self.is_off("rnd.use"):
            ways.append(f"--set rnd.use=true{single_steps}")
        if ways:
            yield f"explore more ({', '.join(ways)})"

    def scales(self) -> Iterator[str]:
        """Yield what to scale: observations, rewards or both."""
        observations, rewards = (self.view.observations, self.view.rewards) if self.view else (None, None)
        if observations and self.is_off("normalize_obs"):
            low, high = observations.low, observations.high
            is_uneven = low is not None and high is not None and high > UNEVEN * low
            if is_uneven or is_far_from_one(observations.to_json()):
                yield "scale observations (--set normalize_obs=true)"
        if rewards and self.is_off("scale_reward") and is_far_from_one(rewards.to_json()):
            small_entropy = " --set entropy.alpha=0.1" if "entropy.alpha" in self.declared else ""  # 1 outweighs them
            yield f"scale rewards (--set scale_reward=true{small_entropy})"

    def other_algorithm(self) -> Iterator[str]:
        """Yield another algorithm, unless the study chooses among them."""
        others = {"Box": ("sac", "ppo"), "Discrete": ("dqn", "ppo")}.get(self.view.actions if self.view else "", ())
        other = next((name for name in others if name != self.config.task), None)
        if other and "algorithm" not in self.config.searched.flat():
            learns_from_goals = self.view is not None and self.view.goals and other != "ppo"
            yield f"try another algorithm (rekindle tune {other} ...{HINDSIGHT * learns_from_goals})"

    def hindsight(self) -> Iterator[str]:
        """Yield hindsight where observations have goals."""
        name = "replay.relabel"
        has_goals, value = self.view is not None and self.view.goals, self.config.fixed.get(name, "none")
        if has_goals and name in self.declared and name not in self.config.open and value == "none":
            yield f"learn from goals that were achieved ({HINDSIGHT.strip()})"

    def memory(self) -> Iterator[str]:
        """Yield a memory for policies that have none."""
        if self.zeros == 1 or self.is_blind:
            return
        name, options = "model.memory", ""
        if "algorithm" in self.declared:
            task = self.config.fixed.get("algorithm", "ppo")
            name, options = f"{task}.model.memory", f"--set algorithm={task} "
        is_searched, value = name in self.config.open, self.config.fixed.get(name, "none")
        if name in self.declared and not is_searched and value == "none":
            yield f"give it a memory, if earlier observations matter ({options}--set {name}=lstm)"


def cures(config: Config, probe: Probe, rewarded: bool = False) -> str:
    """Return what may help trials of this study to learn.

    Args:
        config: configuration of the study.
        probe: probe of its environment.
        rewarded: whether trainings had rewards, if the probe had none.
    """
    study = _Unlearned.of(config, probe, rewarded)
    cures = [
        *study.repairs(),
        *study.hindsight(),
        *study.exploration(),
        *study.scales(),
        longer(config),
        *study.other_algorithm(),
        *study.memory(),
    ]
    return ", or ".join([", ".join(cures[:-1]), cures[-1]]) if len(cures) > 1 else cures[0]
