"""Advantage actor-critic (A2C), synchronous: Mnih et al. (2016), arXiv:1602.01783.

Advantages are generalized advantage estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from ...spaces import integer, ordinal
from ..compiled.actor_critic import Terms
from ..cuda.graphs import captured
from ..experience.returns import CRITIC_LOSSES, advantage_scale, average, explained_variance, standardize
from ..experience.rollout import Agent, Batch
from ..experience.whole_episodes import check_whole_episodes, whole_episodes_space
from ..learner import Learner
from ..networks.actor_critic import ActorCritic
from ..networks.optimizers import (
    GRAD_NORM_INTERVAL,
    LearningRates,
    Optimizer,
    coefficient,
    descend,
    learning_rates,
    network_spans,
    norms,
    scheduled_coefficients,
)
from ..signals.guidance import Guidance, guidance_space
from ..task import Task
from .gradient_steps import Stepped, take_steps
from .on_policy import (
    check_actions,
    check_model,
    check_on_policy,
    make_agent,
    normalize_advantage,
    on_policy_space,
    without_effect,
)
from .rollout_updates import Collector, EveryRollout, can_be_one_graph, check_overlap, overlap_choice, updates_of


class A2CLearner(Learner):
    """P members of A2C.

    The algorithm takes one gradient step per rollout. With more (`update_epochs` times `num_minibatches`), the later
    steps follow the gradient of a policy that has moved since it acted, without the importance ratio by which PPO
    corrects for that.

    Attributes:
        mix_gradients: function that replaces the members' gradients, see `descend`; None leaves them.
        gathered: decides when members are updated; it stores the steps since the last update if updates wait for whole
            episodes.
        collector: collects the rollouts.
    """

    hyperparameters = on_policy_space(
        lr=2e-3,
        optimizer="rmsprop",
        num_steps=8,
        steps=(5, 8, 16, 32, 64),
        update_epochs=integer(1, 10, default=1, accept=(1, 1000), structural=True, search=False),
        num_minibatches=ordinal(1, 2, 4, default=1, accept=(1, 65536), structural=True, search=False),
        normalize_advantage=normalize_advantage(default=False),
        overlap=overlap_choice(),
        **whole_episodes_space(),
    ).extend(**guidance_space())
    parts = ("optimizer", "standardizer", "guidance", "gathered", "collector")
    mix_gradients: Callable[[Tensor], Tensor] | None = None
    agent: Agent
    policy: ActorCritic
    gathered: EveryRollout
    collector: Collector
    check_env = classmethod(check_actions)
    check_values_in_env = classmethod(check_model)
    without_effect = classmethod(without_effect)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        check_on_policy(cls, values)
        check_whole_episodes(values, cls.algorithm())
        check_overlap(values, cls.algorithm())

    def build(self) -> None:
        hp = self.hp
        self.agent = make_agent(self)
        self.policy = self.agent.policy
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.order = self.keys("order")
        self.standardizer = advantage_scale(hp.normalize_advantage, self.members)
        self.guidance = Guidance.of(self)
        self.demonstrations = self.guidance.examples
        self.networks = network_spans(self.policy.parameters.shapes)
        self.collector = Collector.of(self)
        self.gathered = updates_of(self, self.guidance)

    def iterate(self) -> Mapping[str, Tensor]:
        hp, guidance = self.hp, self.guidance
        # Rates follow the steps before this rollout, so the first update has the initial rate. Coefficients, such as
        # ent_coef, follow the steps after it.
        lr = learning_rates(hp, self.env_steps, self.policy.parameters)
        with self.collector.rollout(self.envs, self.iterations, guidance.needs_next_obs) as collected:
            rollout = guidance.scale_extrinsic(collected)
            self.env_steps += hp.num_steps * hp.num_envs
            return self.gathered.update(self, guidance, rollout, partial(self.update, lr))

    def update(self, lr: LearningRates, batch: Batch, active: Tensor | None) -> dict[str, Tensor]:
        """Take all gradient steps on a batch, and return metrics.

        Only members that are `active` (P, 1) are updated; None for all.
        """
        batch["advantages"] = self.standardizer(batch["advantages"])
        metrics, step = take_steps(self, batch, lr.parameters, active)
        weights = batch.get("weights")
        metrics["explained_variance"] = explained_variance(batch["values"], batch["returns"], weights)
        metrics["value"] = average(batch["values"], weights)
        metrics |= self.guidance.update(self, batch, lr.policy, active)
        if "weights" in batch or self.tally.count % GRAD_NORM_INTERVAL == 0:
            metrics |= norms(step, self.networks)
        return {**metrics, **scheduled_coefficients(self.hp, self.env_steps), **lr.metrics}

    @captured
    def step(self, minibatch: Batch, lr: Tensor, moving: Tensor | None) -> Stepped:
        """Take one gradient step on a minibatch.

        Args:
            minibatch: tensors (P, B, ...).
            lr: learning rates as `Optimizer.step` takes them.
            moving: members to update, (P, 1); None for all.

        Returns:
            Metrics, the same members, and the clipped gradient.
        """
        losses, metrics = self.loss(minibatch)
        parameters, limit = self.policy.parameters, self.hp.max_grad_norm
        step = descend(parameters, self.optimizer, losses, lr, limit, moving, self.mix_gradients)
        return metrics, moving, step

    def terms(self) -> Terms:
        """Return the coefficients of `loss` for compiled kernels."""
        hp = self.hp
        ent_coef = coefficient(hp.ent_coef, hp.ent_coef_schedule, self.env_steps)
        standardized = hp.normalize_advantage is True
        return Terms(coefficient(hp.vf_coef), ent_coef, standardized=standardized, critic_loss=hp.critic_loss)

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,) and its metrics, each (P,).

            L = -mean Â log π(a|s) + vf_coef ½ mean (v(s) - R)² - ent_coef mean H(π(·|s))

        The batch is (P, B, ...); if it has weights, the means are weighted. Advantages Â and returns R were computed
        before, so no gradient passes through them. `critic_loss` may replace the square.
        """
        if (compiled := self.policy.compiled_loss(batch, self.terms)) is not None:
            return compiled
        hp, weights = self.hp, batch.get("weights")
        params, values = self.policy(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        advantages = batch["advantages"]
        if hp.normalize_advantage is True:
            advantages = standardize(advantages, weights)
        policy_loss = -average(log_probs * advantages, weights)
        value_loss = 0.5 * average(CRITIC_LOSSES[hp.critic_loss](values - batch["returns"]), weights)
        mean_entropy = average(entropy, weights)
        ent_coef = coefficient(hp.ent_coef, hp.ent_coef_schedule, self.env_steps)
        losses = policy_loss + coefficient(hp.vf_coef) * value_loss - ent_coef * mean_entropy
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": mean_entropy}

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph."""
        return self.mix_gradients is None and can_be_one_graph(self)

    def updates(self) -> list[int]:
        return self.optimizer.tensors["steps"].flatten().int().tolist()

    def truncate_all(self) -> None:
        super().truncate_all()
        self.gathered.truncate_all()


class A2C(Task):
    """Advantage actor-critic for discrete, Box and composite actions.

    Mnih et al. (2016), arXiv:1602.01783, with RMSprop by default, as in the paper. It departs from the paper in two
    ways: environments step synchronously, and advantages are generalized advantage estimates (gae_lambda = 1 gives the
    paper's).
    """

    name = "a2c"
    version = 4
    learner = A2CLearner
