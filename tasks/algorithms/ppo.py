"""Proximal policy optimization (PPO): Schulman et al. (2017), arXiv:1707.06347.

It differs from PPO2 (ppo2.py) in three ways: the critic can be fitted separately, the standardization of advantages is
optional, and so is the clipping of values. A clipped value replaces the value, without PPO2's maximum of both losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...spaces import Space, integer, log_real, maybe, ordinal, real
from ..compiled.actor_critic import Terms
from ..cuda.graphs import captured
from ..experience.returns import CRITIC_LOSSES, advantage_scale, average, explained_variance, standardize
from ..experience.rollout import Agent, Batch
from ..experience.whole_episodes import check_whole_episodes, needs_whole_episodes, whole_episodes_space
from ..learner import Learner
from ..networks.actor_critic import ActorCritic
from ..networks.optimizers import (
    LearningRates,
    Optimizer,
    coefficient,
    decay_space,
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
    check_minibatches,
    check_model,
    check_on_policy,
    make_agent,
    normalize_advantage,
    on_policy_space,
    without_effect,
)
from .rollout_updates import Collector, EveryRollout, can_be_one_graph, check_overlap, overlap_choice, updates_of
from .separate_critic import SeparateCritic, critic_space


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


def within_target_kl(approx_kl: Tensor, target_kl: Tensor | None, active: Tensor | None) -> Tensor | None:
    """Return the members (P, 1) that may still be updated.

    These are the `active` members whose steps all stayed within 1.5 target_kl; None means all.
    """
    if target_kl is None:
        return active
    near = approx_kl.unsqueeze(1) <= 1.5 * target_kl
    return near if active is None else active & near


def ppo_space(**more: Any) -> Space:
    """Return the hyperparameters of PPO and PPO2.

    Those in `more` replace others of the same name, or are added.
    """
    own: dict[str, Any] = {
        "clip_coef": real(0.1, 0.4, default=0.2, accept=(1e-6, 1e6)),
        "clip_coef_schedule": decay_space(),
        "clip_value": maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None),
        "clip_value_schedule": decay_space(),
        "target_kl": maybe(log_real(3e-3, 0.1, accept=(1e-6, 1e3)), default=0.02),
        "update_epochs": integer(1, 10, default=10, accept=(1, 1000), structural=True),
        "num_minibatches": ordinal(2, 4, 8, 16, 32, default=16, accept=(1, 65536), structural=True),
    }
    space = on_policy_space(lr=1e-3, **{**own, **more})
    return space.extend(overlap=overlap_choice(), **whole_episodes_space(silent=True), **guidance_space())


class PPOLearner(Learner):
    """P members of PPO.

    Attributes:
        mix_gradients: function that replaces the members' gradients, see `descend`; None leaves them.
        critic: fits the critic on its own; None if the critic shares the policy's loss.
        gathered: decides when members are updated; it stores the steps since the last update if updates wait for whole
            episodes.
        collector: collects the rollouts.
        networks: spans of each network in a parameter vector.
    """

    hyperparameters = ppo_space(normalize_advantage=normalize_advantage(default=True), critic=critic_space())
    parts = ("optimizer", "standardizer", "guidance", "critic", "gathered", "collector")
    mix_gradients: Callable[[Tensor], Tensor] | None = None
    agent: Agent
    policy: ActorCritic
    critic: SeparateCritic | None = None
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
        if values["critic"]["name"] == "separate":
            check_minibatches(values, "critic.num_minibatches", values["critic"]["num_minibatches"], cls.algorithm())
            if values.get("critic_lr") is not None:
                raise ValueError(
                    f"{cls.algorithm()}: critic_lr is of a critic that shares the policy's loss, but "
                    "critic.name is separate; give critic.lr instead"
                )
            if needs_whole_episodes(values):
                raise ValueError(
                    f"{cls.algorithm()}: a separate critic is fitted to every rollout, but min_rollouts or min_steps "
                    "waits for whole episodes; leave both out, or critic.name"
                )

    def build(self) -> None:
        hp = self.hp
        self.agent = make_agent(self)
        self.policy = self.agent.policy
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.order = self.keys("order")
        self.standardizer = advantage_scale(hp.normalize_advantage, self.members)
        self.guidance = Guidance.of(self)
        self.collector = Collector.of(self)
        self.gathered = updates_of(self, self.guidance)
        self.demonstrations = self.guidance.examples
        self.networks = network_spans(self.policy.parameters.shapes)
        if hp.critic.name == "separate":
            self.critic = SeparateCritic(self.agent, hp, self.keys("critic"))
            del self.networks["critic"]

    def iterate(self) -> Mapping[str, Tensor]:
        hp, guidance = self.hp, self.guidance
        # Rates follow the steps before this rollout, so the first update has the initial rate. Coefficients, such as
        # ent_coef, follow the steps after it.
        lr = learning_rates(hp, self.env_steps, self.policy.parameters)
        with self.collector.rollout(self.envs, self.iterations, guidance.needs_next_obs) as collected:
            rollout = guidance.scale_extrinsic(collected)
            self.env_steps += hp.num_steps * hp.num_envs
            fitted = {} if self.critic is None else self.critic.fit(rollout, self.env_steps, self.iterations)
            return self.gathered.update(self, guidance, rollout, partial(self.update, lr, fitted))

    def update(
        self, lr: LearningRates, fitted: Mapping[str, Tensor], batch: Batch, active: Tensor | None
    ) -> dict[str, Tensor]:
        """Take all gradient steps on a batch, and return metrics.

        Only members that are `active` (P, 1) are updated; None for all. `fitted` are the metrics of a separate critic.
        """
        batch["advantages"] = self.standardizer(batch["advantages"])
        metrics, step = take_steps(self, batch, lr.parameters, active)
        weights = batch.get("weights")
        return {
            **metrics,
            **norms(step, self.networks),
            **self.guidance.update(self, batch, lr.policy, active),
            "explained_variance": explained_variance(batch["values"], batch["returns"], weights),
            "value": average(batch["values"], weights),
            **fitted,
            **scheduled_coefficients(self.hp, self.env_steps),
            **lr.metrics,
        }

    @captured
    def step(self, minibatch: Batch, lr: Tensor, moving: Tensor | None) -> Stepped:
        """Take one gradient step on a minibatch.

        Args:
            minibatch: tensors (P, B, ...).
            lr: learning rates as `Optimizer.step` takes them.
            moving: members that may be updated, (P, 1); None for all.

        Returns:
            Metrics, the members (P, 1) that may still be updated, and the clipped gradient.
        """
        hp, parameters = self.hp, self.policy.parameters
        losses, metrics = self.loss(minibatch)
        moving = within_target_kl(metrics["approx_kl"], hp.target_kl, moving)
        step = descend(parameters, self.optimizer, losses, lr, hp.max_grad_norm, moving, self.mix_gradients)
        return metrics, moving, step

    def terms(self) -> Terms | None:
        """Return the coefficients of `loss` for compiled kernels.

        None means that the kernels do not cover this loss.
        """
        hp, now = self.hp, self.env_steps
        if self.critic is not None:
            return None
        return Terms(
            vf_coef=coefficient(hp.vf_coef),
            ent_coef=coefficient(hp.ent_coef, hp.ent_coef_schedule, now),
            clip_coef=coefficient(hp.clip_coef, hp.clip_coef_schedule, now),
            clip_value=None if hp.clip_value is None else coefficient(hp.clip_value, hp.clip_value_schedule, now),
            standardized=hp.normalize_advantage is True,
            critic_loss=hp.critic_loss,
        )

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,), the negated eq. 9, and metrics.

            L = L_clip + vf_coef ½ mean (v(s) - R)² - ent_coef mean H(π(·|s))

        L_clip is the `clipped_surrogate`. The batch is (P, B, ...); if it has weights, the means are weighted. A
        separate critic has no term here, and `critic_loss` may replace the square.
        """
        if (compiled := self.policy.compiled_loss(batch, self.terms)) is not None:
            return compiled
        hp, now, weights = self.hp, self.env_steps, batch.get("weights")
        params, values = self.policy(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        advantages = batch["advantages"]
        if hp.normalize_advantage is True:
            advantages = standardize(advantages, weights)
        clip_coef = coefficient(hp.clip_coef, hp.clip_coef_schedule, now)
        losses, moved = clipped_surrogate(log_probs, batch["log_probs"], advantages, clip_coef, weights)
        metrics = {"policy_loss": losses, "entropy": average(entropy, weights), **moved}
        if self.critic is None:
            if hp.clip_value is not None:
                clip = coefficient(hp.clip_value, hp.clip_value_schedule, now).unsqueeze(1)
                values = batch["values"] + torch.clamp(values - batch["values"], -clip, clip)
            metrics["value_loss"] = 0.5 * average(CRITIC_LOSSES[hp.critic_loss](values - batch["returns"]), weights)
            losses = losses + coefficient(hp.vf_coef) * metrics["value_loss"]
        return losses - coefficient(hp.ent_coef, hp.ent_coef_schedule, now) * metrics["entropy"], metrics

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph."""
        return self.mix_gradients is None and can_be_one_graph(self)

    def updates(self) -> list[int]:
        return self.optimizer.tensors["steps"].flatten().int().tolist()

    def truncate_all(self) -> None:
        super().truncate_all()
        self.gathered.truncate_all()


class PPO(Task):
    """PPO for discrete and Box actions, Dicts and Tuples.

    Schulman et al. (2017), arXiv:1707.06347; details follow Huang et al. (2022), "The 37 implementation details of
    PPO". By default actor and critic share one loss; with critic.name = "separate" the critic is fitted before the
    policy is updated.
    """

    name = "ppo"
    version = 4
    learner = PPOLearner
