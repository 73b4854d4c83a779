"""Learned rewards and cloning for off-policy algorithms, on replayed batches.

The rewards of a batch are computed at each gradient step, by the signals in their current state:

    r = extrinsic.strength · r_env + Σ strength · r_signal

Signals share the algorithm's discount and critic, and their returns end with episodes. After the policy's step, each
signal takes one step on the same batch. Cloning follows: on the actor, or for a Q-network by the margin of Hester et
al. (2018), arXiv:1704.03732, section 4, which makes a demonstrated action worth more than any other. ML-Agents combines
SAC and signals in this way.

Notation used for tensor shapes: P members, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...spaces import Dimension, Space
from ..checkpoint.member_state import Composite
from ..learner import Learner
from .cloning import Cloning, Imitator
from .demonstrations import Examples
from .guidance import OPTIONS, SIGNALS, check_guidance, guidance_space, is_guided
from .signal import Signal

Batch = Mapping[str, Tensor]


def replay_guidance_space() -> dict[str, Dimension | Space]:
    """Return the hyperparameters of `guidance_space` without the signals' discounts.

    By default, cloning learns from 64 demonstrated steps in each gradient step.
    """
    groups = dict(guidance_space(samples=64))
    for signal in SIGNALS:
        group = groups[signal.name]
        assert isinstance(group, Space)
        groups[signal.name] = Space(**{name: entry for name, entry in group.items() if name != "gamma"})
    return groups


def check_replay_guidance(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise ValueError if other hyperparameters rule out signals or cloning."""
    check_guidance(values, algorithm)
    used = [name for name in OPTIONS if values[name]["use"]]
    if used and values["model"].get("memory", "none") != "none":
        raise ValueError(
            f"{algorithm}: batches of {' and '.join(used)} are single steps, but model.memory is "
            f"{values['model']['memory']}; leave one of them out, or use PPO"
        )
    signals = [name for name in used if name != "cloning"]
    if signals and values["n_step"] != 1:
        raise ValueError(
            f"{algorithm}: rewards of {' and '.join(signals)} are for single steps, but n_step is {values['n_step']}; "
            "try n_step=1"
        )


class ReplayGuidance:
    """No guidance: the environment's rewards alone.

    Attributes:
        examples: the members' demonstrations.
    """

    examples: Examples | None = None

    def total(self, rewards: Tensor, batch: Batch) -> Tensor:
        """Return the environment's rewards (P, B) plus those of signals."""
        return rewards

    def update(self, learner: Learner, batch: Batch, number: int, lr: Tensor) -> dict[str, Tensor]:
        """Train signals and clone after the policy's gradient step; return metrics.

        Args:
            learner: the learner.
            batch: batch of the step.
            number: number of the step.
            lr: the policy's learning rates, (P, 1).
        """
        return {}


class ActiveReplayGuidance(ReplayGuidance, Composite):
    """Signals, cloning and demonstrations of P members, as one part."""

    def __init__(self, learner: Learner, imitator: Imitator):
        hp = learner.hp
        self.strength: Tensor | None = hp.extrinsic.strength
        if steps := hp.demonstrated_steps:
            self.examples = Examples(learner, steps)
        self.signals: list[Signal] = [
            signal(learner, self.examples, discounted=False) for signal in SIGNALS if getattr(hp, signal.name).use
        ]
        self.cloning: Cloning | None = None
        if self.examples is not None and hp.cloning.use:
            self.cloning = Cloning(learner, self.examples, imitator, learner.obs_normalizer)
        signals = Composite(**{signal.name: signal for signal in self.signals}) if self.signals else None
        cloning = None if self.cloning is None else self.cloning.optimizer
        super().__init__(signals=signals, cloning=cloning, demonstrations=self.examples)

    @torch.no_grad()
    def total(self, rewards: Tensor, batch: Batch) -> Tensor:
        total, steps = rewards if self.strength is None else rewards * self.strength, self._steps(batch)
        for signal in self.signals:
            total = total + signal.hp.strength * signal.scaled(signal.rewards(steps))
        return total

    def update(self, learner: Learner, batch: Batch, number: int, lr: Tensor) -> dict[str, Tensor]:
        metrics, steps = {}, self._steps(batch)
        for signal in self.signals:
            signal.observe(steps)
            with torch.no_grad():
                rewards = signal.rewards(steps)
                signal.observe_rewards(rewards)
                metrics[f"{signal.name}_reward"] = (signal.hp.strength * signal.scaled(rewards)).mean(1)
            losses, parts = signal.loss(steps, number)
            signal.trained.descend(losses, signal.hp.lr)
            signal.update_multiplier(parts)
            metrics |= {f"{signal.name}_{part}": x.detach() for part, x in {"loss": losses, **parts}.items()}
        if self.cloning is not None:
            metrics |= self.cloning.update(number, learner.env_steps, lr)
        return metrics

    def _steps(self, batch: Batch) -> dict[str, Tensor]:
        """Return a replayed batch in the form that signals take.

        Return nothing without signals: batches of sequences have no next observations, and signals exclude them.
        """
        return {"obs": batch["obs"], "actions": batch["action"], "next_obs": batch["next_obs"]} if self.signals else {}


def make_replay_guidance(learner: Learner, imitator: Imitator) -> ReplayGuidance:
    """Return the guidance that a learner's hyperparameters ask for."""
    return ActiveReplayGuidance(learner, imitator) if is_guided(learner.hp) else ReplayGuidance()
