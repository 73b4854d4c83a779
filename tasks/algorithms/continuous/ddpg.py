"""Deep deterministic policy gradient (DDPG): Lillicrap et al. (2016), arXiv:1509.02971.

Default values are the paper's (section 7), but for layer sizes, and without its decay of the critic's weights and its
batch normalization. TD3 derives from this file.

Notation: P members, B batch, c critics of a member, k numbers in an action.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ....spaces import log_real, maybe, ordinal
from ...task import Task
from .actions import DeterministicActions, DeterministicHead
from .learner import ActorCriticLearner, actor_critic_space
from .networks import NetworkForm
from .noise import noise_space
from .steps import ActorCriticSteps

# Why a deterministic policy lacks hyperparameters of others.
DETERMINISTIC = {
    "entropy": "its policy is deterministic; use sac, tqc or crossq",
    "use_sde": "its noise is added to actions, see exploration; use sac or tqc for state-dependent noise",
}


class DDPGLearner(ActorCriticLearner):
    """P members of DDPG.

    Attributes:
        copies: c.
    """

    hyperparameters = actor_critic_space(
        lr=1e-4,
        exploration=noise_space("ou", std=0.2),
        critic_lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=1e-3, search=False),
        tau=log_real(0.001, 0.1, default=0.001, accept=(0.0, 1.0)),
        batch_size=ordinal(64, 128, 256, 512, default=64, accept=(2, 65536), structural=True),
        policy_delay="its actor moves in every gradient step; use td3",
        **dict.fromkeys(("target_policy_noise", "target_noise_clip"), "its target policy has no noise; use td3"),
        **DETERMINISTIC,
    )
    copies: ClassVar[int] = 1
    action_form = DeterministicActions
    only_vectors = "its target policy has neither memory nor encoder"
    actions: DeterministicActions

    def network_form(self) -> NetworkForm:
        head = DeterministicHead(self.actions, self.hp.exploration)
        return NetworkForm(self.hp, head, self.copies, target_actor=True)

    def actor_values(self, q: Tensor) -> Tensor:
        """Return the first critic's values, (P, B, 1).

        J = -mean q₁(s, μ(s))
        """
        return q[:, 0]

    def kernel(self) -> ActorCriticSteps | None:
        return ActorCriticSteps.covering(self, self.perceptrons, heard=1)


class DDPG(Task):
    """Deep deterministic policy gradient for bounded Boxes.

    Lillicrap et al. (2016), arXiv:1509.02971. It acts in Dicts and Tuples
    of Boxes, too. Prioritized replay, n-step targets, a running reward scale, signals and cloning are options, as in
    SAC. It has no memory, and takes no images.
    """

    name = "ddpg"
    version = 2
    learner = DDPGLearner
