"""Advantage actor-critic (A2C), synchronous: Mnih et al. (2016), arXiv:1602.01783.

Advantages are generalized advantage estimates.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..compiled.records import LossTerms
from ..experience.returns import average
from ..experience.whole_episodes import whole_episodes_space
from ..networks.compiled_actor_critic import loss_terms
from ..networks.optimizers import GRAD_NORM_INTERVAL
from ..task import Task
from .on_policy import hard_environments, normalize_advantage, on_policy_space
from .on_policy_learner import Metrics, OnPolicyLearner


class A2CLearner(OnPolicyLearner):
    """P members of A2C.

    The algorithm takes one gradient step per rollout. With more (`update_epochs` times `num_minibatches`), the later
    steps follow the gradient of a policy that has moved since it acted, without the importance ratio by which PPO
    corrects for that.
    """

    hyperparameters = on_policy_space(
        lr=2e-3,
        optimizer="rmsprop",
        num_steps=8,
        steps=(5, 8, 16, 32, 64),
        normalize_advantage=normalize_advantage(default=False),
        **whole_episodes_space(),
        **hard_environments(),
    )
    norm_interval = GRAD_NORM_INTERVAL

    def policy_loss(self, log_probs: Tensor, advantages: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Return the policy's term of the loss, (P,).

        L_policy = -mean Â log π(a|s)
        """
        return -average(log_probs * advantages, batch.get("weights")), {}

    def kernel(self) -> LossTerms:
        terms = self.coefficient("vf_coef"), self.coefficient("ent_coef")
        return loss_terms(*terms, standardized=self.normalize_advantage is True, critic_loss=self.hp.critic_loss)


class A2C(Task):
    """Advantage actor-critic for discrete, Box and composite actions.

    Mnih et al. (2016), arXiv:1602.01783, with RMSprop by default, as in the paper. It departs from the paper in two
    ways: environments step synchronously, and advantages are generalized advantage estimates (gae_lambda = 1 gives the
    paper's).
    """

    name = "a2c"
    version = 4
    learner = A2CLearner
