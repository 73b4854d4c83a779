"""Advantage actor-critic, synchronous: Mnih et al. (2016), arXiv:1602.01783, with generalized advantage estimates."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..spaces import integer, ordinal
from .gae import explained_variance
from .on_policy import OnPolicyLearner, normalize_advantage, on_policy_space
from .task import Task


class A2CLearner(OnPolicyLearner):
    """P members of A2C.

    One step per rollout is the algorithm. With more (`update_epochs` times `num_minibatches`), the later ones follow
    the gradient of a policy that has moved since it acted, and nothing corrects for that: PPO's ratio is there for it.
    """

    hyperparameters = on_policy_space(
        lr=2e-3,
        optimizer="rmsprop",
        num_steps=8,
        steps=(5, 8, 16, 32, 64),
        update_epochs=integer(1, 10, default=1, accept=(1, 1000), structural=True, search=False),
        num_minibatches=ordinal(1, 2, 4, default=1, accept=(1, 65536), structural=True, search=False),
        normalize_advantage=normalize_advantage(default=False),
    )

    def iterate(self) -> dict[str, Tensor]:
        lr = self.learning_rate()
        batch = self.rollout()
        for minibatch in self.minibatches(batch, self.hp, self.order_keys):
            losses, report = self.loss(minibatch)
            self.descend(losses, lr)
        report["explained_variance"] = explained_variance(batch["values"], batch["returns"])
        return {**report, **self.scheduled(), "lr": lr.squeeze(1)}

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,).

        Advantages and returns are numbers, computed before: nothing is differentiated through them.
        """
        hp, ent_coef = self.hp, self.coefficient("ent_coef")
        params, values = self.forward(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        policy_loss = -(log_probs * self.advantages(batch)).mean(1)
        value_loss = 0.5 * (values - batch["returns"]).square().mean(1)
        mean_entropy = entropy.mean(1)
        losses = policy_loss + hp.vf_coef[:, 0] * value_loss - ent_coef[:, 0] * mean_entropy
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": mean_entropy}


class A2C(Task):
    """Advantage actor-critic for every action space of Gymnasium; RMSprop by default, as in the paper.

    Mnih et al. (2016), arXiv:1602.01783. Departs from it: environments run in step, not asynchronously, and advantages
    are generalized ones, of which gae_lambda = 1 gives the paper's.
    """

    name = "a2c"
    version = 1
    learner = A2CLearner
