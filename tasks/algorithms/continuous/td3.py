"""Twin delayed deep deterministic policy gradient (TD3): Fujimoto et al. (2018), arXiv:1802.09477.

It differs from DDPG (ddpg.py) in three ways: the lesser of two critics' values is the target, actor and targets move
once in `policy_delay` gradient steps, and noise smooths the target policy. Default values are those of the authors'
code, github.com/sfujim/TD3, but for learning_starts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....spaces import real
from ...task import Task
from .actions import SoftSample
from .ddpg import DETERMINISTIC, DDPGLearner
from .learner import actor_critic_space, delay_choice
from .noise import noise_space
from .steps import ActorCriticSteps


class TD3Learner(DDPGLearner):
    """P members of TD3."""

    hyperparameters = actor_critic_space(
        lr=3e-4,
        exploration=noise_space("gaussian", std=0.1),
        policy_delay=delay_choice(2, 4, "the actor and the targets"),
        target_policy_noise=real(
            0.0,
            0.5,
            default=0.2,
            accept=(0.0, 100.0),
            search=False,
            help="standard deviation of noise in the target policy's actions, whose bounds are -1 and 1",
        ),
        target_noise_clip=real(0.1, 1.0, default=0.5, accept=(0.0, 100.0), search=False, help="limit of that noise"),
        target_update_interval="targets move with the actor, once in policy_delay gradient steps; set that",
        **DETERMINISTIC,
    )
    copies = 2

    def due(self, number: int) -> tuple[bool, Tensor | None]:
        moves = number % self.hp.policy_delay == 0
        return moves, self.hp.tau if moves else None

    def next_sample(self, outputs: Tensor, noise: Tensor) -> SoftSample:
        """Return the smoothed actions for the next observations.

            a' = clip(μ'(s') + clip(σ z, -c, c), -1, 1),   σ = target_policy_noise,   c = target_noise_clip

        Eq. 14 and 15 of the paper, for normalized actions.
        """
        std, clip = (x.unsqueeze(-1) for x in (self.hp.target_policy_noise, self.hp.target_noise_clip))
        sample = super().next_sample(outputs, noise)
        return sample._replace(continuous=(sample.continuous + (std * noise).clamp(-clip, clip)).clamp(-1, 1))

    def kernel(self) -> ActorCriticSteps | None:
        smoothing = torch.cat([self.hp.target_policy_noise, self.hp.target_noise_clip], 1)
        return ActorCriticSteps.covering(self, self.perceptrons, heard=1, smoothing=smoothing)


class TD3(Task):
    """Twin delayed DDPG for bounded Boxes.

    Fujimoto et al. (2018), arXiv:1802.09477. It acts in Dicts and Tuples
    of Boxes, too. Prioritized replay, n-step targets, a running reward scale, signals and cloning are options, as in
    SAC. It has no memory, and takes no images.
    """

    name = "td3"
    version = 2
    learner = TD3Learner
