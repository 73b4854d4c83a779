"""Proximal policy optimization as in OpenAI's baselines; unlike in PPO (ppo.py), actor and critic always have one loss,
values are clipped by the clip range as ratios are, and advantages are always standardized."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...spaces import integer, log_real, maybe, ordinal, real
from ..experience.returns import explained_variance, standardize
from ..networks.optimizers import decay_space
from ..task import Task
from .on_policy import OnPolicyLearner, on_policy_space
from .ppo import clipped_surrogate


class PPO2Learner(OnPolicyLearner):
    """P members of PPO2."""

    hyperparameters = on_policy_space(
        lr=1e-3,
        clip_coef=real(0.1, 0.4, default=0.2, accept=(1e-6, 1e6)),
        clip_coef_schedule=decay_space(),
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None, search=False),  # None: clip_coef
        clip_value_schedule=decay_space(),
        target_kl=maybe(log_real(3e-3, 0.1, accept=(1e-6, 1e3)), default=None),
        update_epochs=integer(1, 10, default=4, accept=(1, 1000), structural=True),
        num_minibatches=ordinal(2, 4, 8, default=4, accept=(1, 65536), structural=True),
    )

    def iterate(self) -> dict[str, Tensor]:
        lr = self.learning_rate()
        batch = self.rollout()
        report = self.learn(batch, lr)
        report["explained_variance"] = explained_variance(batch["values"], batch["returns"])
        report["value"] = batch["values"].mean(1)
        return {**report, **self.scheduled(), "lr": lr.squeeze(1)}

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,)."""
        hp, clip_coef, ent_coef = self.hp, self.coefficient("clip_coef"), self.coefficient("ent_coef")
        clip_value = clip_coef if hp.clip_value is None else self.coefficient("clip_value")
        params, values = self.forward(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        policy_loss, moved = clipped_surrogate(log_probs, batch, standardize(batch["advantages"]), clip_coef)
        value_loss = clipped_value_loss(values, batch["values"], batch["returns"], clip_value)
        mean_entropy = entropy.mean(1)
        losses = policy_loss + hp.vf_coef[:, 0] * value_loss - ent_coef[:, 0] * mean_entropy
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": mean_entropy, **moved}


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, clip_value: Tensor) -> Tensor:
    """Half the mean squared error of the values, or of the values kept near the old ones, whichever is worse, (P,).

    max((v - R)², (v_old + clip(v - v_old, -clip_value, clip_value) - R)²) / 2 on (P, B); clip_value (P, 1), in reward.
    """
    near = old + torch.clamp(values - old, -clip_value, clip_value)
    return 0.5 * torch.max((values - returns).square(), (near - returns).square()).mean(1)


class PPO2(Task):
    """Proximal policy optimization with a joint loss and clipped values, for every action space of Gymnasium.

    Schulman et al. (2017), arXiv:1707.06347, as in Dhariwal et al. (2017), "OpenAI Baselines", ppo2. The clip range
    acts on values in units of reward, so environments with large rewards want `normalize_reward`, or a `clip_value`.
    """

    name = "ppo2"
    version = 1
    learner = PPO2Learner
