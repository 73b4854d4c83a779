"""Advantage actor-critic, synchronous: Mnih et al. (2016), arXiv:1602.01783, with generalized advantage estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...spaces import integer, ordinal
from ..experience.returns import average, explained_variance
from ..experience.whole_episodes import Gathered, check_whole_episodes, waits, whole_episodes_space
from ..networks.grad_norms import EVERY
from ..task import Task
from .on_policy import OnPolicyLearner, normalize_advantage, on_policy_space


class A2CLearner(OnPolicyLearner):
    """P members of A2C.

    One step per rollout is the algorithm. With more (`update_epochs` times `num_minibatches`), the later ones follow
    the gradient of a policy that has moved since it acted, and nothing corrects for that: PPO's ratio is there for it.

    Attributes:
        gathered: the members' steps since their last updates, where these wait for whole episodes, see
            `whole_episodes_space`.
    """

    hyperparameters = on_policy_space(
        lr=2e-3,
        optimizer="rmsprop",
        num_steps=8,
        steps=(5, 8, 16, 32, 64),
        update_epochs=integer(1, 10, default=1, accept=(1, 1000), structural=True, search=False),
        num_minibatches=ordinal(1, 2, 4, default=1, accept=(1, 65536), structural=True, search=False),
        normalize_advantage=normalize_advantage(default=False),
        **whole_episodes_space(),
    )
    parts = (*OnPolicyLearner.parts, "gathered")

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        check_whole_episodes(values, cls.algorithm())

    def build(self) -> None:
        super().build()
        hp = self.hp
        waiting = waits(vars(hp))
        distribution = self.policy.distribution
        self.gathered = Gathered(hp, self.envs, distribution, self.device, self.guidance.row_names) if waiting else None

    def iterate(self) -> Mapping[str, Tensor]:
        lr = self.learning_rate()
        return self.update(self.rollout(), lr) if self.gathered is None else self.gather(self.gathered, lr)

    def gather(self, gathered: Gathered, lr: Tensor) -> Mapping[str, Tensor]:
        """num_steps everywhere, and an update of the members that have enough; their environments begin anew."""
        rollout = self.play()
        gathered.add(rollout, *self.estimate(rollout), self.guidance.compute_rewards(rollout))
        due, used = gathered.enough()
        report: Mapping[str, Tensor] = {}
        if due.any():
            size = None if self.memory is None else self.memory.tensors["state"].shape[-1]
            batch = gathered.batch(used, self.hp.gamma, self.hp.gae_lambda, size)
            batch = self.guidance.combine_advantages(batch, gathered.rows())
            learned = self.update(batch, lr, torch.from_numpy(due).to(lr.device).unsqueeze(1))
            report = {**learned, "rollouts": gathered.rollouts(used)}
            unfinished = due[:, None] & gathered.running()
            self.envs.abandon(unfinished)
            self.reset(unfinished)
            gathered.clear(due)
        self.reporting = due
        return report

    def truncate_all(self) -> None:
        super().truncate_all()
        if self.gathered is not None:
            self.gathered.truncate_all()

    def update(self, batch: dict[str, Tensor], lr: Tensor, active: Tensor | None = None) -> dict[str, Tensor]:
        """All steps on a batch, of the members that are `active` (P, 1); what to report."""
        for minibatch in self.minibatches(batch, self.hp, self.order_keys):
            losses, report = self.loss(minibatch)
            self.descend(losses, lr, active)
        weights = batch.get("weights")
        report["explained_variance"] = explained_variance(batch["values"], batch["returns"], weights)
        report["value"] = average(batch["values"], weights)
        sizes = self.norms() if self.gathered is not None or self.tally.count % EVERY == 0 else {}
        return {**report, **self.follow(batch, lr, active), **self.scheduled(), **sizes, "lr": lr.squeeze(1)}

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,).

        Advantages and returns are numbers, computed before: nothing is differentiated through them.
        """
        hp, ent_coef = self.hp, self.coefficient("ent_coef")
        params, values = self.forward(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        weights = batch.get("weights")
        policy_loss = -average(log_probs * self.advantages(batch), weights)
        value_loss = 0.5 * average((values - batch["returns"]).square(), weights)
        mean_entropy = average(entropy, weights)
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
