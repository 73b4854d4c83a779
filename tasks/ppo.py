"""Proximal policy optimization with one loss for actor and critic: Schulman et al. (2017), arXiv:1707.06347."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..spaces import categorical, integer, log_real, maybe, ordinal, real
from .gae import explained_variance, standardize
from .on_policy import OnPolicyLearner, on_policy_space
from .task import Task


class PPOLearner(OnPolicyLearner):
    """P members of PPO."""

    hyperparameters = on_policy_space(
        lr=1e-3,
        clip_coef=real(0.1, 0.4, default=0.2, accept=(1e-6, 1e6)),
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None),
        target_kl=maybe(log_real(3e-3, 0.1, accept=(1e-6, 1e3)), default=None),
        update_epochs=integer(1, 10, default=4, accept=(1, 1000), structural=True),
        num_minibatches=ordinal(2, 4, 8, default=4, accept=(1, 65536), structural=True),
        normalize_advantage=categorical(False, True, default=True, structural=True, search=False),
    )

    def iterate(self) -> dict[str, Tensor]:
        hp = self.hp
        lr = self.learning_rate()
        batch = self.rollout()
        active = None if hp.target_kl is None else torch.ones_like(lr, dtype=torch.bool)
        for minibatch in self.minibatches(batch):
            losses, report = self.loss(minibatch)
            if active is not None:
                active &= report["approx_kl"].unsqueeze(1) <= 1.5 * hp.target_kl
            self.descend(losses, lr, active)
        report["explained_variance"] = explained_variance(batch["values"], batch["returns"])
        return {**report, "lr": lr.squeeze(1)}

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,)."""
        hp = self.hp
        params, values = self.policy(batch["obs"])
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        log_ratio = log_probs - batch["log_probs"]
        ratio = log_ratio.exp()
        advantages = standardize(batch["advantages"]) if hp.normalize_advantage else batch["advantages"]
        clipped = torch.clamp(ratio, 1 - hp.clip_coef, 1 + hp.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean(1)  # eq. 7
        if hp.clip_value is not None:
            values = batch["values"] + torch.clamp(values - batch["values"], -hp.clip_value, hp.clip_value)
        value_loss = 0.5 * (values - batch["returns"]).square().mean(1)
        mean_entropy = entropy.mean(1)
        losses = policy_loss + hp.vf_coef[:, 0] * value_loss - hp.ent_coef[:, 0] * mean_entropy  # eq. 9
        with torch.no_grad():
            approx_kl = (ratio - 1 - log_ratio).mean(1)
            clip_fraction = ((ratio - 1).abs() > hp.clip_coef).float().mean(1)
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": mean_entropy,
                        "approx_kl": approx_kl, "clip_fraction": clip_fraction}  # fmt: skip


class PPO(Task):
    """Proximal policy optimization with clipped surrogate and joint value loss, for every action space of Gymnasium.

    Schulman et al. (2017), arXiv:1707.06347; details as Huang et al. (2022), "The 37 implementation details of PPO".
    """

    name = "ppo"
    version = 1
    learner = PPOLearner
