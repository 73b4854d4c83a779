"""Proximal policy optimization as in ppo2 of OpenAI Baselines.

It differs from PPO (ppo.py) in three ways: actor and critic always share one loss, values are always clipped (by the
clip range of the ratios unless `clip_value` is given), and advantages are always standardized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...spaces import maybe, real
from ..compiled.actor_critic import Terms
from ..experience.returns import CRITIC_LOSSES, average, explained_variance, standardize
from ..experience.rollout import Agent, Batch
from ..experience.whole_episodes import check_whole_episodes
from ..learner import Learner
from ..networks.actor_critic import ActorCritic
from ..networks.optimizers import (
    LearningRates,
    Optimizer,
    coefficient,
    learning_rates,
    network_spans,
    norms,
    scheduled_coefficients,
)
from ..signals.guidance import Guidance
from ..task import Task
from .gradient_steps import take_steps
from .on_policy import check_actions, check_model, check_on_policy, make_agent, without_effect
from .ppo import PPOLearner, clipped_surrogate, ppo_space
from .rollout_updates import Collector, EveryRollout, can_be_one_graph, check_overlap, updates_of


class PPO2Learner(Learner):
    """P members of PPO2."""

    hyperparameters = ppo_space(
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None, search=False)  # None: clip_coef
    )
    parts = ("optimizer", "guidance", "gathered", "collector")
    mix_gradients: Callable[[Tensor], Tensor] | None = None  # replaces the members' gradients, see `descend`
    agent: Agent
    policy: ActorCritic
    gathered: EveryRollout
    collector: Collector
    step = PPOLearner.step  # it calls this learner's own `loss`
    check_env = classmethod(check_actions)
    check_values_in_env = classmethod(check_model)
    without_effect = classmethod(without_effect)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        check_on_policy(cls, values)
        check_whole_episodes(values, cls.algorithm())
        check_overlap(values, cls.algorithm())

    def build(self) -> None:
        self.agent = make_agent(self)
        self.policy = self.agent.policy
        self.optimizer = Optimizer(self.policy.parameters.vector, self.hp.optimizer)
        self.order = self.keys("order")
        self.guidance = Guidance.of(self)
        self.collector = Collector.of(self)
        self.gathered = updates_of(self, self.guidance)
        self.demonstrations = self.guidance.examples
        self.networks = network_spans(self.policy.parameters.shapes)

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
        weights = batch.get("weights")
        metrics, step = take_steps(self, batch, lr.parameters, active)
        return {
            **metrics,
            **norms(step, self.networks),
            **self.guidance.update(self, batch, lr.policy, active),
            "explained_variance": explained_variance(batch["values"], batch["returns"], weights),
            "value": average(batch["values"], weights),
            **scheduled_coefficients(self.hp, self.env_steps),
            **lr.metrics,
        }

    def terms(self) -> Terms:
        """Return the coefficients of `loss` for compiled kernels."""
        hp, now = self.hp, self.env_steps
        clip_coef = clip_value = coefficient(hp.clip_coef, hp.clip_coef_schedule, now)
        if hp.clip_value is not None:
            clip_value = coefficient(hp.clip_value, hp.clip_value_schedule, now)
        ent_coef = coefficient(hp.ent_coef, hp.ent_coef_schedule, now)
        return Terms(coefficient(hp.vf_coef), ent_coef, clip_coef, clip_value, "ppo2", True, hp.critic_loss)

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,) and its metrics, each (P,).

        It is PPO's loss with `clipped_value_loss` for the critic. The batch is (P, B, ...); if it has weights, the
        means are weighted.
        """
        if (compiled := self.policy.compiled_loss(batch, self.terms)) is not None:
            return compiled
        hp, now, weights = self.hp, self.env_steps, batch.get("weights")
        clip_coef = clip_value = coefficient(hp.clip_coef, hp.clip_coef_schedule, now)
        if hp.clip_value is not None:
            clip_value = coefficient(hp.clip_value, hp.clip_value_schedule, now)
        params, values = self.policy(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        advantages = standardize(batch["advantages"], weights)
        policy_loss, moved = clipped_surrogate(log_probs, batch["log_probs"], advantages, clip_coef, weights)
        critic_loss = CRITIC_LOSSES[hp.critic_loss]
        value_loss = clipped_value_loss(values, batch["values"], batch["returns"], clip_value, critic_loss, weights)
        mean_entropy = average(entropy, weights)
        ent_coef = coefficient(hp.ent_coef, hp.ent_coef_schedule, now)
        losses = policy_loss + coefficient(hp.vf_coef) * value_loss - ent_coef * mean_entropy
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": mean_entropy, **moved}

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph."""
        return self.mix_gradients is None and can_be_one_graph(self)

    def updates(self) -> list[int]:
        return self.optimizer.tensors["steps"].flatten().int().tolist()

    def truncate_all(self) -> None:
        super().truncate_all()
        self.gathered.truncate_all()


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
