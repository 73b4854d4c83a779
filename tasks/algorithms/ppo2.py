"""Proximal policy optimization as in OpenAI's baselines, ppo2.

Unlike in PPO (ppo.py), actor and critic always have one loss, values are clipped by the clip range as ratios are, and
advantages are always standardized.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...spaces import maybe, real
from ..networks.optimizers import coefficient
from ..task import Task
from .on_policy import OnPolicyLearner, check_on_policy
from .ppo import PPOLearner, ppo_space


class PPO2Learner(PPOLearner):
    """P members of PPO2."""

    hyperparameters = ppo_space(
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None, search=False)  # None: clip_coef
    )
    check = classmethod(check_on_policy)
    build = OnPolicyLearner.build  # the critic is never separate

    def value_loss(self, values: Tensor, batch: Mapping[str, Tensor], clip_coef: Tensor) -> Tensor:
        if self.hp.clip_value is not None:
            clip_coef = coefficient(self.hp.clip_value, self.hp.clip_value_schedule, self.env_steps)
        return clipped_value_loss(values, batch["values"], batch["returns"], clip_coef)


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, clip_value: Tensor) -> Tensor:
    """Return the clipped loss of values, (P,).

        mean of max((v - R)², (v_old + clip(v - v_old, -clip_value, clip_value) - R)²) / 2

    over B, where v, v_old and R are (P, B): the larger error of the values and of those kept near the old ones.
    clip_value is (P,), in units of reward.
    """
    clip = clip_value.unsqueeze(1)
    near = old + torch.clamp(values - old, -clip, clip)
    return 0.5 * torch.max((values - returns).square(), (near - returns).square()).mean(1)


class PPO2(Task):
    """PPO with joint loss and clipped values, as in OpenAI Baselines' ppo2.

    Schulman et al. (2017), arXiv:1707.06347; Dhariwal et al. (2017), "OpenAI Baselines". Acts in Discrete,
    MultiDiscrete, MultiBinary and Box spaces. The clip range acts on values in units of reward, so environments with
    large rewards want `normalize_reward`, or a `clip_value`.
    """

    name = "ppo2"
    version = 1
    learner = PPO2Learner
