"""Guidance of a policy besides the environment's rewards: signals and cloning.

The policy follows the mean of all advantages, including the environment's, as in ML-Agents:

    A = (A_environment + Σₖ A_k) / (1 + K),   A_k by generalized advantage estimation of strengthₖ rₖ, with γₖ and vₖ

A mean, unlike a sum, preserves the size of a step if advantages are not standardized. ML-Agents' settings correspond to
these:

    reward_signals: extrinsic           extrinsic.strength; gamma
        curiosity, rnd                  icm, rnd: use, strength, gamma, lr (learning_rate), width (hidden_units)
        gail                            gail: the same, use_actions (true here, as in the paper), variational (use_vail)
    behavioral_cloning                  cloning: strength, steps, samples_per_update, and its own batch_size
    demo_path                           the task's demonstrations, see `demonstrations`; one for both

Notation used for tensor shapes: P members, T steps, N environments, B batch, K signals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...spaces import Dimension, Space, integer, maybe, real
from ..checkpoint.member_state import Composite
from ..experience.returns import average, gae
from ..experience.rollout import Rollout, evaluate_values
from ..learner import Learner
from .cloning import Cloning, cloning_space
from .demonstrations import Examples
from .gail import GAIL, gail_space
from .icm import ICM, icm_space
from .rnd import RND, rnd_space
from .signal import Signal

SIGNALS: tuple[type[Signal], ...] = (ICM, RND, GAIL)
OPTIONS = (*(signal.name for signal in SIGNALS), "cloning")
FROM_DEMONSTRATIONS = ("gail", "cloning")


def guidance_space(samples: int = 0) -> dict[str, Dimension | Space]:
    """Return the hyperparameters of signals and cloning.

    extrinsic.strength multiplies the environment's rewards (after normalize_reward); 0 learns without them, None leaves
    them unchanged. `init` sets demonstrated_steps to the length of the demonstrations.

    Args:
        samples: default of cloning.samples_per_update.
    """
    strength = maybe(real(0.0, 1.0, accept=(0.0, 1e6)), default=None, search=False, silent=True)
    return {
        "extrinsic": Space(strength=strength),
        "icm": icm_space(),
        "rnd": rnd_space(),
        "gail": gail_space(),
        "cloning": cloning_space(samples),
        "demonstrated_steps": integer(0, 10**8, default=0, structural=True, search=False, silent=True),
    }


def check_guidance(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise ValueError if hyperparameters of `guidance_space` contradict each other."""
    imitating = [name for name in FROM_DEMONSTRATIONS if values[name]["use"]]
    demonstrated = values["demonstrated_steps"]
    if imitating and not demonstrated:
        raise ValueError(
            f"{algorithm}: {' and '.join(imitating)} {'need' if imitating[1:] else 'needs'} demonstrations, but there "
            "are none; give the task demonstrations=FILE, or --demonstrations FILE"
        )
    if demonstrated and not imitating:
        raise ValueError(
            f"{algorithm}: there are demonstrations, but nothing learns from them; set cloning.use or gail.use to true"
        )


class Guidance:
    """No guidance: the environment's rewards alone.

    Attributes:
        row_names: names of the tensors that `compute_rewards` returns.
        needs_next_obs: whether rollouts must keep `next_obs`.
        examples: the members' demonstrations.
    """

    examples: Examples | None = None
    row_names: tuple[str, ...] = ()
    needs_next_obs = False

    def scale_extrinsic(self, rollout: Rollout) -> Rollout:
        """Return the rollout with the environment's rewards times their strength."""
        return rollout

    def compute_rewards(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return the signals' rewards and values of a rollout, (T, P, N).

        This updates the running statistics that scale observations and rewards.
        """
        return {}

    def combine_advantages(self, batch: dict[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch with the mean of all advantages.

        It also gets NAME.rewards, NAME.values and NAME.returns of each signal, for `update`.

        Args:
            batch: tensors (P, B, ...), with next_obs, and possibly weights.
            rows: result of `compute_rewards`, with terminated, ended and possibly present, each (T, P, N).
        """
        return batch

    def augment_batch(self, batch: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor]:
        """Compute the signals of a rollout, and combine them in its batch."""
        return batch

    def update(
        self, learner: Learner, batch: Mapping[str, Tensor], lr: Tensor, active: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Train signals and clone after the policy's update; return metrics.

        Args:
            learner: the learner.
            batch: batch as `combine_advantages` returned it.
            lr: the policy's learning rates (P, 1), which the signals' critics use, too.
            active: members to update, (P, 1); None for all.
        """
        return {}


class ActiveGuidance(Guidance, Composite):
    """Signals, cloning and demonstrations of P members, as one part."""

    def __init__(self, learner: Learner):
        assert learner.agent is not None
        hp, self.agent = learner.hp, learner.agent
        self.gae_lambda: Tensor = hp.gae_lambda
        self.strength: Tensor | None = hp.extrinsic.strength
        if steps := hp.demonstrated_steps:
            self.examples = Examples(learner, steps)
        self.signals = [signal(learner, self.examples) for signal in SIGNALS if getattr(hp, signal.name).use]
        self.keys = learner.keys("signals")
        self.cloning: Cloning | None = None
        if self.examples is not None and hp.cloning.use:
            self.cloning = Cloning(learner, self.examples, self.agent.policy, self.agent.obs_normalizer)
        self.row_names = tuple(f"{s.name}.{row}" for s in self.signals for row in ("rewards", "values", "next_values"))
        self.needs_next_obs = bool(self.signals)
        signals = Composite(**{signal.name: signal for signal in self.signals}) if self.signals else None
        cloning = None if self.cloning is None else self.cloning.optimizer
        super().__init__(signals=signals, cloning=cloning, demonstrations=self.examples)

    def scale_extrinsic(self, rollout: Rollout) -> Rollout:
        return rollout if self.strength is None else replace(rollout, rewards=rollout.rewards * self.strength)

    @torch.no_grad()
    def compute_rewards(self, rollout: Rollout) -> dict[str, Tensor]:
        if not self.signals:
            return {}
        assert rollout.next_obs is not None
        steps = {"obs": rollout.obs[:, :-1], "actions": rollout.actions, "next_obs": rollout.next_obs}
        steps = {name: x.flatten(1, 2).contiguous() for name, x in steps.items()}
        rows: list[Tensor] = []
        counted = None if rollout.present is None else rollout.present.cpu().numpy() > 0
        for signal in self.signals:
            signal.observe(steps, None if counted is None else counted.swapaxes(0, 1).reshape(counted.shape[1], -1))
            rewards = _in_time(signal.rewards(steps), rollout)
            scaled = signal.normalize(rewards.cpu().numpy(), counted)
            rewards = signal.hp.strength * torch.from_numpy(scaled).to(rewards)
            values, next_values = evaluate_values(rollout, signal.critic)
            if not signal.episodic:  # the return continues with the first step of the next episode
                last = _in_time(signal.critic(rollout.obs[:, -1].contiguous()), rollout)
                next_values = rollout.following(torch.cat([values[1:], last]))
            rows += [rewards, values, next_values]
        return dict(zip(self.row_names, rows, strict=True))

    @torch.no_grad()
    def combine_advantages(self, batch: dict[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = self.agent.flatten
        total = batch["advantages"]
        more: dict[str, Tensor] = {}
        for signal in self.signals:
            name = signal.name
            rewards, values, next_values = (rows[f"{name}.{row}"] for row in ("rewards", "values", "next_values"))
            terminated, ended = (
                rows[row] if signal.episodic else torch.zeros_like(rows[row]) for row in ("terminated", "ended")
            )
            rates = signal.hp.gamma, self.gae_lambda
            advantages = gae(rewards, values, next_values, terminated, ended, *rates, rows.get("present"))
            total = total + flat(advantages)
            more |= {f"{name}.rewards": flat(rewards), f"{name}.values": flat(values)}
            more[f"{name}.returns"] = flat(advantages + values)
        return {**batch, **more, "advantages": total / (1 + len(self.signals))}

    def augment_batch(self, batch: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor]:
        if not self.signals:
            return batch
        assert rollout.next_obs is not None
        rows = {**self.compute_rewards(rollout), "terminated": rollout.terminated, "ended": rollout.ended}
        if rollout.present is not None:
            rows["present"] = rollout.present
        return self.combine_advantages({**batch, "next_obs": self.agent.flatten_steps(rollout.next_obs)}, rows)

    def update(
        self, learner: Learner, batch: Mapping[str, Tensor], lr: Tensor, active: Tensor | None = None
    ) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = {}
        for signal in self.signals:
            for metric in ("reward", "value"):
                metrics[f"{signal.name}_{metric}"] = average(batch[f"{signal.name}.{metric}s"], batch.get("weights"))
        if self.signals:
            metrics |= self._train_signals(learner, batch, lr, active)
        if self.cloning is not None:
            metrics |= self.cloning.update(learner.iterations, learner.env_steps, lr, active)
        return metrics

    def _train_signals(
        self, learner: Learner, batch: Mapping[str, Tensor], lr: Tensor, active: Tensor | None
    ) -> dict[str, Tensor]:
        """Train each signal on as many minibatches as the policy."""
        hp = learner.hp
        metrics: dict[str, Tensor] = {}
        first = learner.iterations * hp.update_epochs * hp.num_minibatches
        minibatches = self.agent.minibatches(batch, self.keys, learner.iterations, hp.update_epochs, hp.num_minibatches)
        for position, minibatch in enumerate(minibatches, first):
            for signal in self.signals:
                losses, parts = signal.loss(minibatch, position)
                signal.trained.descend(losses, signal.hp.lr, active)
                signal.update_multiplier(parts, active)
                error = signal.critic.update(minibatch, minibatch[f"{signal.name}.returns"], lr, active)
                parts = {"loss": losses, **parts, "value_loss": error}
                metrics |= {f"{signal.name}_{part}": x.detach() for part, x in parts.items()}
        return metrics


def is_guided(hp: SimpleNamespace) -> bool:
    """Return whether hyperparameters ask for anything but the environment's rewards."""
    return hp.extrinsic.strength is not None or any(getattr(hp, name).use for name in OPTIONS)


def make_guidance(learner: Learner) -> Guidance:
    """Return the guidance that a learner's hyperparameters ask for."""
    return ActiveGuidance(learner) if is_guided(learner.hp) else Guidance()


def _in_time(x: Tensor, rollout: Rollout) -> Tensor:
    """Reshape (P, T * N) to (T, P, N), contiguous."""
    return x.unflatten(1, (-1, rollout.rewards.shape[2])).transpose(0, 1).contiguous()
