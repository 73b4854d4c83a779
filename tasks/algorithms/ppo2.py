"""Proximal policy optimization as in ppo2 of OpenAI Baselines.

It differs from PPO (ppo.py) in three ways: actor and critic always share one loss, values are always clipped (by the
clip range of the ratios unless `clip_value` is given), and advantages are always standardized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...spaces import maybe, real
from ..compiled.records import LossTerms
from ..experience.returns import CRITIC_LOSSES, average
from ..networks.compiled_actor_critic import loss_terms
from ..task import Task
from .ppo import PPOLearner, ppo_space


class PPO2Learner(PPOLearner):
    """P members of PPO2."""

    hyperparameters = ppo_space(
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None, search=False)  # None: clip_coef
    )

    def value_loss(self, values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        critic_loss, clip_value = CRITIC_LOSSES[self.hp.critic_loss], self.clip_value()
        return clipped_value_loss(
            values, batch["values"], batch["returns"], clip_value, critic_loss, batch.get("weights")
        )

    def kernel(self) -> LossTerms:
        coefficient = self.coefficient
        terms = (coefficient("vf_coef"), coefficient("ent_coef"), coefficient("clip_coef"), self.clip_value())
        return loss_terms(*terms, "ppo2", True, self.hp.critic_loss)

    def clip_value(self) -> Tensor:
        """Return the clip range (P,) of values, or else of ratios."""
        return self.coefficient("clip_coef" if self.hp.clip_value is None else "clip_value")


def clipped_value_loss(
    values: Tensor,
    old: Tensor,
    returns: Tensor,
    clip_value: Tensor,
    loss: Callable[[Tensor], Tensor] = torch.square,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the clipped loss of values, (P,).

        ½ mean max(l(v - R), l(v_old + clip(v - v_old, -ε, ε) - R)),   l(δ) = δ²

    The mean is over B. It takes the larger error of the values v and of those kept within ε of the old ones.

    Args:
        values: v, (P, B).
        old: v_old, values of the critic before the update, (P, B).
        returns: R, (P, B).
        clip_value: ε in units of reward, (P,).
        loss: l, one of CRITIC_LOSSES.
        weights: weights of the rows, (P, B); None for equal ones.
    """
    clip = clip_value.unsqueeze(1)
    near = old + torch.clamp(values - old, -clip, clip)
    return 0.5 * average(torch.max(loss(values - returns), loss(near - returns)), weights)


class PPO2(Task):
    """PPO with joint loss and clipped values, as in OpenAI's ppo2.

    Schulman et al. (2017), arXiv:1707.06347; Dhariwal et al. (2017), "OpenAI Baselines". It acts in discrete and Box
    spaces, and in Dicts and Tuples of both. The clip range limits values in units of reward, so without
    `normalize_reward`, environments with large rewards need a `clip_value`.
    """

    name = "ppo2"
    version = 4
    learner = PPO2Learner
