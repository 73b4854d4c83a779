"""Truncated quantile critics (TQC): Kuznetsov et al. (2020), arXiv:2005.04269.

It is SAC whose critics give quantiles of the return instead of its mean. The targets of all critics are mixed, and the
largest quantiles are dropped, against overestimation. Default values are those of sb3-contrib, whose two critics are
fewer than the paper's five.

Notation: P members, B batch, c critics of a member, m quantiles of a critic, t quantiles that are kept of all targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....spaces import integer
from ...experience.returns import clipped_square
from ...task import Task
from .actions import SoftNumbers, SoftSample, soft_head
from .entropy import entropy_space
from .learner import actor_critic_space, masked
from .networks import Batch, NetworkForm
from .noise import sde_space
from .sac import SACLearner
from .steps import ActorCriticSteps


class TQCLearner(SACLearner):
    """P members of TQC."""

    hyperparameters = actor_critic_space(
        lr=3e-4,
        entropy=entropy_space(),
        critics=integer(1, 5, default=2, accept=(1, 100), structural=True, search=False, help="number of critics"),
        quantiles=integer(5, 50, default=25, accept=(1, 1000), structural=True, help="quantiles of each critic"),
        dropped_quantiles=integer(
            0, 4, default=2, accept=(0, 999), structural=True, help="quantiles of a critic that its targets leave out"
        ),  # rl-zoo's sampler drops up to all but one; here, any sampled pair is valid
        critic_loss="it is always Huber's; leave it out",
        **sde_space(),
    )

    action_form = SoftNumbers

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        if values["dropped_quantiles"] >= values["quantiles"]:
            raise ValueError(
                f"{cls.algorithm()}: some quantiles must be left of each critic, but dropped_quantiles is "
                f"{values['dropped_quantiles']} of {values['quantiles']} quantiles; drop fewer"
            )

    def network_form(self) -> NetworkForm:
        return NetworkForm(self.hp, soft_head(self.actions, self.hp), self.hp.critics, self.hp.quantiles)

    def critic_loss(
        self, batch: Batch, reward: Tensor, next_sample: SoftSample, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' losses, errors of their means, and mean values.

            J = mean_{c,i,j} |τᵢ - 1(yⱼ < θᵢ)| l(yⱼ - θᵢ),   yⱼ = r + discount (z₍ⱼ₎(s', a') - α log π(a'|s'))

        θᵢ(s, a) are a critic's quantiles at τᵢ = (i - ½) / m, l is Huber's loss, and z₍ⱼ₎ are the t least of all
        targets' quantiles: eq. 8 to 12 of the paper. Results and arguments are those of `ActorCriticLearner`.
        """
        hp, mask = self.hp, batch.get("mask")
        numbers, _ = self.actions.normalize(batch["action"])
        q, next_q = self.policy.q_and_target(batch, numbers, next_sample.continuous)
        kept = hp.critics * (hp.quantiles - hp.dropped_quantiles)
        bonus = (alpha.unsqueeze(1) * next_sample.entropies).sum(-1, keepdim=True)
        mixture = mixed(next_q).sort(-1).values[..., :kept] + bonus  # (P, B, t)
        targets = reward.unsqueeze(-1) + batch["discount"].unsqueeze(-1) * mixture
        levels = (torch.arange(hp.quantiles, device=q.device) + 0.5) / hp.quantiles
        errors = targets.unsqueeze(2) - mixed(q).unsqueeze(3)  # (P, B, c m, t)
        weights = (levels.repeat(hp.critics).unsqueeze(-1) - (errors < 0).float()).abs()
        losses = (weights * clipped_square(errors, 1.0)).flatten(2).mean(-1)
        means = q.detach().mean(-1)  # (P, c, B)
        value = masked(mixed(q.detach()), mask).flatten(1).mean(1)
        return masked(losses, batch.get("weight", mask)), targets.mean(-1).unsqueeze(1) - means, value

    def actor_values(self, q: Tensor) -> Tensor:
        """Return the means of all critics' quantiles, (P, B, 1).

            J = mean α log π(a|s) - mean_{c,i} θᵢ(s, a)

        Eq. 13 of the paper is the policy's loss.
        """
        return mixed(q).mean(-1, keepdim=True)

    def kernel(self) -> ActorCriticSteps | None:
        kept = self.hp.critics * (self.hp.quantiles - self.hp.dropped_quantiles)
        return ActorCriticSteps.covering(self, self.perceptrons, kept=kept)


def mixed(q: Tensor) -> Tensor:
    """Return critics' quantiles (P, c, B, m), as (P, B, c m)."""
    return q.transpose(1, 2).flatten(2)


class TQC(Task):
    """Truncated quantile critics for bounded Boxes.

    Kuznetsov et al. (2020), arXiv:2005.04269. It acts in Dicts and Tuples of Boxes, too. Images, memories,
    state-dependent exploration, prioritized replay, n-step targets, signals and cloning are options, as in SAC.
    """

    name = "tqc"
    version = 3
    learner = TQCLearner
