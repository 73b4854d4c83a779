"""Proximal policy optimization; unlike in PPO2 (ppo2.py), values need no clipping and a critic may be fitted alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...spaces import integer, log_real, maybe, ordinal, real
from ..experience.returns import explained_variance
from ..networks.optimizers import decay_space
from ..task import Task
from .on_policy import OnPolicyLearner, normalize_advantage, on_policy_space
from .separate_critic import SeparateCritic, critic_space


def clipped_surrogate(
    log_probs: Tensor, batch: Mapping[str, Tensor], advantages: Tensor, clip_coef: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The negative of eq. 7, (P,), and how far the policy moved; log_probs and advantages (P, B), clip_coef (P, 1)."""
    log_ratio = log_probs - batch["log_probs"]
    ratio = log_ratio.exp()
    clipped = torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
    loss = -torch.min(ratio * advantages, clipped * advantages).mean(1)
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean(1)
        clip_fraction = ((ratio - 1).abs() > clip_coef).float().mean(1)
    return loss, {"approx_kl": approx_kl, "clip_fraction": clip_fraction}


class PPOLearner(OnPolicyLearner):
    """P members of PPO."""

    hyperparameters = on_policy_space(
        lr=1e-3,
        clip_coef=real(0.1, 0.4, default=0.2, accept=(1e-6, 1e6)),
        clip_coef_schedule=decay_space(),
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None),
        clip_value_schedule=decay_space(),
        target_kl=maybe(log_real(3e-3, 0.1, accept=(1e-6, 1e3)), default=None),
        update_epochs=integer(1, 10, default=4, accept=(1, 1000), structural=True),
        num_minibatches=ordinal(2, 4, 8, default=4, accept=(1, 65536), structural=True),
        normalize_advantage=normalize_advantage(default=True),
        critic=critic_space(),
    )
    parts = (*OnPolicyLearner.parts, "critic")

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        if values["critic"]["name"] == "separate":
            cls.check_minibatches(values, "critic.num_minibatches", values["critic"]["num_minibatches"])
            if values.get("critic_lr") is not None:
                raise ValueError(
                    f"{cls.algorithm()}: critic_lr is of a critic that shares the policy's loss, but "
                    "critic.name is separate; give critic.lr instead"
                )

    def build(self) -> None:
        super().build()
        separate = self.hp.critic.name == "separate"
        self.critic = SeparateCritic(self.policy, self.hp.critic, self.keys("critic")) if separate else None

    def iterate(self) -> dict[str, Tensor]:
        lr = self.learning_rate()
        rollout = self.play()
        fitted = {} if self.critic is None else self.critic.fit(self, rollout)
        batch = self.scale(self.prepare(rollout), rollout)
        report = self.learn(batch, lr)
        report["explained_variance"] = explained_variance(batch["values"], batch["returns"])
        report["value"] = batch["values"].mean(1)
        return {**report, **fitted, **self.scheduled(), "lr": lr.squeeze(1)}

    def norms(self) -> dict[str, Tensor]:
        found = super().norms()
        return found if self.critic is None else {n: norm for n, norm in found.items() if not n.endswith(".critic")}

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,)."""
        hp, clip_coef, ent_coef = self.hp, self.coefficient("clip_coef"), self.coefficient("ent_coef")
        params, values = self.forward(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        policy_loss, moved = clipped_surrogate(log_probs, batch, self.advantages(batch), clip_coef)
        mean_entropy = entropy.mean(1)
        report = {"policy_loss": policy_loss, "entropy": mean_entropy, **moved}
        if self.critic is not None:
            return policy_loss - ent_coef[:, 0] * mean_entropy, report
        if hp.clip_value is not None:
            clip_value = self.coefficient("clip_value")
            values = batch["values"] + torch.clamp(values - batch["values"], -clip_value, clip_value)
        value_loss = 0.5 * (values - batch["returns"]).square().mean(1)
        losses = policy_loss + hp.vf_coef[:, 0] * value_loss - ent_coef[:, 0] * mean_entropy  # eq. 9
        return losses, {**report, "value_loss": value_loss}


class PPO(Task):
    """Proximal policy optimization with clipped surrogate, for every action space of Gymnasium.

    Schulman et al. (2017), arXiv:1707.06347; details as Huang et al. (2022), "The 37 implementation details of PPO". By
    default actor and critic have one loss; with critic.name = "separate" the critic is fitted before the policy is.
    """

    name = "ppo"
    version = 1
    learner = PPOLearner
