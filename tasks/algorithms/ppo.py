"""Proximal policy optimization (PPO): Schulman et al. (2017), arXiv:1707.06347.

It differs from PPO2 (ppo2.py) in three ways: the critic can be fitted separately, the standardization of advantages is
optional, and so is the clipping of values. A clipped value replaces the value, without PPO2's maximum of both losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...spaces import Space, integer, log_real, maybe, ordinal, real
from ..compiled.records import LossTerms
from ..experience.returns import average
from ..networks.compiled_actor_critic import loss_terms
from ..networks.optimizers import decay_space
from ..task import Task
from .on_policy import hard_environments, normalize_advantage, on_policy_space
from .on_policy_learner import Metrics, OnPolicyLearner
from .separate_critic import critic_space


def clipped_surrogate(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_coef: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the negated clipped surrogate objective, eq. 7, (P,), and its metrics.

        L = -mean min(r Â, clip(r, 1 - ε, 1 + ε) Â),   r = π(a|s) / π_old(a|s)

    The metrics measure how far the policy has moved: `approx_kl` is mean (r - 1 - log r), `clip_fraction` the share of
    rows with |r - 1| > ε.

    Args:
        log_probs: log π(a|s), (P, B).
        old_log_probs: log π_old(a|s) of the policy that acted, (P, B).
        advantages: Â, (P, B).
        clip_coef: ε, (P,).
        weights: weights of the rows, (P, B); None for equal ones.
    """
    clip = clip_coef.unsqueeze(1)
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
    loss = -average(torch.min(ratio * advantages, clipped * advantages), weights)
    with torch.no_grad():
        approx_kl = average(ratio - 1 - log_ratio, weights)
        clip_fraction = average(((ratio - 1).abs() > clip).float(), weights)
    return loss, {"approx_kl": approx_kl, "clip_fraction": clip_fraction}


def ppo_space(**more: Any) -> Space:
    """Return the hyperparameters of PPO and PPO2.

    Those in `more` replace others of the same name, or are added.
    """
    clipped: dict[str, Any] = {
        "clip_coef": real(0.1, 0.4, default=0.2, accept=(1e-6, 1e6)),
        "clip_coef_schedule": decay_space(),
        "clip_value": maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None),
        "clip_value_schedule": decay_space(),
        "target_kl": maybe(log_real(3e-3, 0.1, accept=(1e-6, 1e3)), default=0.02),
        "update_epochs": integer(1, 10, default=10, accept=(1, 1000), structural=True),
        "num_minibatches": ordinal(2, 4, 8, 16, 32, default=16, accept=(1, 65536), structural=True),
    }
    steps = (32, 64, 128, 256, 512)
    return on_policy_space(lr=1e-3, steps=steps, **{**clipped, **hard_environments(), **more})


class PPOLearner(OnPolicyLearner):
    """P members of PPO."""

    hyperparameters = ppo_space(normalize_advantage=normalize_advantage(default=True), critic=critic_space())

    def policy_loss(self, log_probs: Tensor, advantages: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        clip = self.coefficient("clip_coef")
        return clipped_surrogate(log_probs, batch["log_probs"], advantages, clip, batch.get("weights"))

    def value_loss(self, values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the critic's term of the loss, (P,).

        L_value = ½ mean (v_old + clip(v - v_old, -ε, ε) - R)²,   with ε = clip_value, if there is one
        """
        if self.hp.clip_value is not None:
            clip = self.coefficient("clip_value").unsqueeze(1)
            values = batch["values"] + torch.clamp(values - batch["values"], -clip, clip)
        return super().value_loss(values, batch)

    def kernel(self) -> LossTerms | None:
        hp, coefficient = self.hp, self.coefficient
        if self.critic is not None:
            return None
        clip_value = None if hp.clip_value is None else coefficient("clip_value")
        terms = (coefficient("vf_coef"), coefficient("ent_coef"), coefficient("clip_coef"), clip_value)
        return loss_terms(*terms, "ppo", hp.normalize_advantage is True, hp.critic_loss)


class PPO(Task):
    """PPO for discrete and Box actions, Dicts and Tuples.

    Schulman et al. (2017), arXiv:1707.06347; details follow Huang et al. (2022), "The 37 implementation details of
    PPO". By default actor and critic share one loss; with critic.name = "separate" the critic is fitted before the
    policy is updated.
    """

    name = "ppo"
    version = 4
    learner = PPOLearner
