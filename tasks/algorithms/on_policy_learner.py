"""Base of algorithms that learn from rollouts, such as PPO and A2C.

An iteration collects a rollout, estimates advantages Â and returns R, and takes gradient steps on minibatches of it:

    L = L_policy + vf_coef ½ mean (v(s) - R)² - ent_coef mean H(π(·|s))

A subclass gives L_policy, and may replace the critic's term. With `min_rollouts` or `min_steps`, members are updated
when they have enough whole episodes instead of after every rollout.

Notation: P members, B rows of a batch, D numbers in a policy's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..checkpoint.member_state import Part
from ..compiled.records import Pass
from ..cuda.graphs import captured
from ..experience.returns import CRITIC_LOSSES, advantage_scale, average, explained_variance, standardize
from ..experience.rollout import Agent, Batch, Rollout, permutations
from ..experience.whole_episodes import EpisodeBuffer, check_whole_episodes, needs_whole_episodes
from ..learner import Learner
from ..networks.actor_critic import ActorCritic
from ..networks.compiled_actor_critic import CompiledActorCritic
from ..networks.encoders import ENCODERS
from ..networks.optimizers import (
    SCHEDULED,
    Clipped,
    CompiledDescent,
    FlushedDenormals,
    LearningRates,
    learning_rates,
    network_spans,
    norms,
    optimizer_of,
    schedule,
)
from ..runtime.metric_means import MemberMetrics
from ..runtime.progress import tick
from ..signals.guidance import Guidance, make_guidance
from .collectors import OverlappedCollector, check_overlap
from .on_policy import check_actions, check_model, check_on_policy, make_agent, units, without_effect
from .separate_critic import SeparateCritic, check_critic

Metrics = dict[str, Tensor]
Steps = Callable[[Batch, Tensor, Tensor | None], tuple[Metrics, Clipped]]  # see `TorchSteps`


class OnPolicyLearner(Learner):
    """P members that learn from rollouts.

    The hyperparameters are those of `on_policy_space`.

    Attributes:
        norm_interval: iterations between two measurements of the gradients' norms.
        mix_gradients: function that replaces the members' gradients (P, D), if they learn from one another.
        group: number of neighboring members that are updated together, such as the particles of a trial.
        critic: fits the critic on its own; None if the critic shares the policy's loss.
        episodes: steps since the last update, if updates wait for whole episodes; otherwise None.
        collector: collects rollouts during updates; None to collect them when they are needed.
        networks: spans of each network in a parameter vector.
        schedules: schedules of coefficients that are not constant, by name.
    """

    parts = ("optimizer", "standardizer", "guidance", "critic", "collector")
    scratch = (*Learner.scratch, "steps")
    in_kernel = ("loss", "policy_loss", "value_loss")
    norm_interval: ClassVar[int] = 1
    knows_masks = True
    mix_gradients: Callable[[Tensor], Tensor] | None = None
    group: int = 1
    agent: Agent
    policy: ActorCritic
    critic: SeparateCritic | None = None
    episodes: EpisodeBuffer | None = None
    collector: OverlappedCollector | None = None
    check_env = classmethod(check_actions)
    units = classmethod(units)
    check_values_in_env = classmethod(check_model)
    without_effect = classmethod(without_effect)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        check_on_policy(cls, values)
        check_whole_episodes(values, cls.algorithm())
        check_overlap(values, cls.algorithm())
        check_critic(values, cls.algorithm())

    def build(self) -> None:
        hp = self.hp
        self.agent = make_agent(self)
        self.policy = self.agent.policy
        self.optimizer = optimizer_of(self.policy.parameters.vector, hp.optimizer)
        self.order = self.keys("order")
        self.normalize_advantage: bool | str = vars(hp).get("normalize_advantage", True)
        self.standardizer = advantage_scale(self.normalize_advantage, self.members)
        self.target_kl: Tensor | None = vars(hp).get("target_kl")
        self.guidance: Guidance = make_guidance(self)
        self.demonstrations = self.guidance.examples
        self.networks = network_spans(self.policy.parameters.shapes)
        plans = {name: vars(hp)[f"{name}_schedule"] for name in SCHEDULED if f"{name}_schedule" in vars(hp)}
        self.schedules = {name: plan for name, plan in plans.items() if plan.name != "constant"}
        if hp.overlap:
            self.collector = OverlappedCollector(self.agent, make_agent(self), self.envs, hp.num_steps)
        if needs_whole_episodes(vars(hp)):
            self.episodes = EpisodeBuffer(hp, self.envs, self.agent, self.guidance.row_names)
        if "critic" in vars(hp) and hp.critic.name == "separate":
            self.critic = SeparateCritic(self.agent, hp, self.keys("critic"))
            del self.networks["critic"]

    def iterate(self) -> Mapping[str, Tensor]:
        hp, guidance = self.hp, self.guidance
        # Rates follow the steps before this rollout, so the first update has the initial rate. Coefficients, such as
        # ent_coef, follow the steps after it.
        lr = learning_rates(hp, self.env_steps, self.policy.parameters)
        source = (self.envs, self.iterations, guidance.needs_next_obs)
        collector = self.collector
        with nullcontext(self.agent.collect(*source)) if collector is None else collector.rollout(*source) as collected:
            rollout = guidance.scale_extrinsic(collected)
            self.env_steps += hp.num_steps * hp.num_envs
            if not self.envs.learns:
                return {}
            if self.episodes is not None:
                return self.update_on_episodes(self.episodes, rollout, lr)
            fitted = {} if self.critic is None else self.critic.fit(rollout, self.env_steps, self.iterations)
            batch = self.agent.advantages(rollout, hp.gamma, hp.gae_lambda)
            return {**self.update(guidance.augment_batch(batch, rollout), lr), **fitted}

    def update_on_episodes(self, episodes: EpisodeBuffer, rollout: Rollout, lr: LearningRates) -> Mapping[str, Tensor]:
        """Update members that have enough whole episodes; abandon their running ones."""
        hp, guidance = self.hp, self.guidance
        episodes.add(rollout, guidance.compute_rewards(rollout))
        ready, used = episodes.ready_members()
        ready = ready.reshape(-1, self.group).all(1).repeat(self.group)
        if not ready.any():
            return {}
        batch = guidance.combine_advantages(episodes.batch(used, hp.gamma, hp.gae_lambda), episodes.rows())
        active = torch.from_numpy(ready).to(self.device).unsqueeze(1)
        metrics = self.update(self.agent.with_log_probs(batch), lr, active)
        metrics["rollouts"] = episodes.rollouts(used)
        unfinished = ready[:, None] & episodes.running()
        self.envs.abandon(unfinished)
        self.agent.reset(unfinished)
        episodes.clear(ready)
        return MemberMetrics(metrics, ready)

    def update(self, batch: Batch, lr: LearningRates, active: Tensor | None = None) -> Metrics:
        """Take all gradient steps on a batch, and return metrics.

        Only members that are `active` (P, 1) are updated; None for all.
        """
        batch["advantages"] = self.standardizer(
            batch["advantages"], batch.get("weights") if self.episodes is None else None
        )
        metrics, gradient = self.steps(batch, lr.parameters, active)
        weights = batch.get("weights")
        measured = weights is not None or self.tally.count % self.norm_interval == 0
        return {
            **metrics,
            **(norms(gradient, self.networks) if measured else {}),
            **self.guidance.update(self, batch, lr.policy, active),
            "explained_variance": explained_variance(batch["values"], batch["returns"], weights),
            "value": average(batch["values"], weights),
            **{name: self.coefficient(name) for name in self.schedules},
            **lr.metrics,
        }

    @cached_property
    def steps(self) -> Steps:
        """Gradient steps on a batch, by kernels or by torch.

        Kernels cover networks and losses that have them, but no batches of whole episodes, and no minibatches of one
        row (see Exactness in networks/mlp.py).
        """
        hp, policy = self.hp, self.policy
        rows = hp.num_steps * hp.num_envs // hp.num_minibatches
        if not isinstance(policy, CompiledActorCritic) or self.episodes or rows == 1 or self.kernel() is None:
            return TorchSteps(self)
        joint = self.mix_gradients is not None or hp.critic_lr is not None
        return KernelGradients(self, policy) if joint else KernelSteps(self, policy)

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Return each member's loss (P,) and its metrics, each (P,).

            L = L_policy + vf_coef L_value - ent_coef mean H(π(·|s))

        The batch is (P, B, ...); if it has weights, the means are weighted. Advantages and returns were computed
        before, so no gradient passes through them. A separate critic has no term here.
        """
        weights = batch.get("weights")
        params, values = self.policy(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        advantages = batch["advantages"]
        if self.normalize_advantage is True:
            advantages = standardize(advantages, weights)
        losses, moved = self.policy_loss(log_probs, advantages, batch)
        metrics = {"policy_loss": losses, "entropy": average(entropy, weights), **moved}
        if self.critic is None:
            metrics["value_loss"] = self.value_loss(values, batch)
            losses = losses + self.coefficient("vf_coef") * metrics["value_loss"]
        return losses - self.coefficient("ent_coef") * metrics["entropy"], metrics

    def policy_loss(self, log_probs: Tensor, advantages: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Return the policy's term of the loss and further metrics, each (P,).

        Args:
            log_probs: log π(a|s), (P, B), with gradients.
            advantages: Â, (P, B), standardized if the hyperparameters ask for it.
            batch: the minibatch, tensors (P, B, ...). If it has `weights`, means are weighted, see `average`.
        """
        raise NotImplementedError

    def value_loss(self, values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the critic's term of the loss, (P,).

            L_value = ½ mean (v(s) - R)²

        `critic_loss` may replace the square.

        Args:
            values: v(s), (P, B), with gradients.
            batch: the minibatch, tensors (P, B, ...).
        """
        errors = CRITIC_LOSSES[self.hp.critic_loss](values - batch["returns"])
        return 0.5 * average(errors, batch.get("weights"))

    def coefficient(self, name: str) -> Tensor:
        """Return the current value (P,) of the hyperparameter of this name."""
        value: Tensor = vars(self.hp)[name]
        if name in self.schedules:
            value = value * schedule(self.schedules[name], torch.full_like(value, self.env_steps))
        return value.squeeze(1)

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph.

        They cannot if a coefficient follows a schedule, if batches of whole episodes vary in size, if another thread
        acts meanwhile, if gradients are mixed, or if the encoder is a user's own.
        """
        hp = self.hp
        if self.device.type != "cuda" or hp.overlap or self.episodes is not None or self.mix_gradients is not None:
            return False
        return hp.model.encoder in ENCODERS and not self.schedules

    def updates(self) -> list[int]:
        return self.optimizer.tensors["steps"].flatten().int().tolist()

    def truncate_all(self) -> None:
        super().truncate_all()
        if self.episodes is not None:
            self.episodes.truncate_all()

    @property
    def live_parts(self) -> dict[str, Part]:
        parts = super().live_parts
        return parts if self.episodes is None else {**parts, "gathered": self.episodes}  # its name in stored states


class TorchSteps:
    """Gradient steps on minibatches, one by one."""

    def __init__(self, learner: OnPolicyLearner):
        self.learner = learner

    def __call__(self, batch: Batch, lr: Tensor, active: Tensor | None) -> tuple[Metrics, Clipped]:
        """Take a gradient step on each minibatch, until target_kl stops all members.

        A member that is stopped keeps the metrics and the gradient of the minibatch on which it had moved too far.

        Args:
            batch: tensors (P, B, ...).
            lr: learning rates, (P, 1) or (P, D).
            active: members that may be updated, (P, 1); None for all.

        Returns:
            Metrics, each (P,), and the last clipped gradient.
        """
        learner, hp, last, moving = self.learner, self.learner.hp, None, active
        parts = (learner.order, learner.iterations, hp.update_epochs, hp.num_minibatches)
        for minibatch in learner.agent.minibatches(batch, *parts):
            before = moving
            metrics, moving, gradient = self.step(minibatch, lr, before)
            if moving is not None and last is None:  # the next step may overwrite what this one returned
                metrics, gradient = {name: value.clone() for name, value in metrics.items()}, gradient.copy()
            elif last is not None and before is not None:
                metrics = {name: torch.where(before[:, 0], value, last[0][name]) for name, value in metrics.items()}
                gradient = gradient.where(before, last[1])
            last = metrics, gradient
            if moving is not None and moving.device.type == "cpu" and not moving.any():  # on a GPU, asking would wait
                break
        assert last is not None
        return last

    @captured
    def step(self, minibatch: Batch, lr: Tensor, moving: Tensor | None) -> tuple[Metrics, Tensor | None, Clipped]:
        """Take one gradient step on a minibatch.

        Args:
            minibatch: tensors (P, B, ...).
            lr: learning rates as `Optimizer.step` takes them.
            moving: members that may be updated, (P, 1); None for all.

        Returns:
            Metrics, the members (P, 1) that may still be updated, and the clipped gradient.
        """
        learner = self.learner
        metrics, gradient = self.differentiate(minibatch)
        if learner.target_kl is not None:  # stop members that moved too far
            near = metrics["approx_kl"].unsqueeze(1) <= 1.5 * learner.target_kl
            moving = near if moving is None else moving & near
        if learner.mix_gradients is not None:
            gradient = learner.mix_gradients(gradient)
        return metrics, moving, learner.optimizer.descend(gradient, lr, learner.hp.max_grad_norm, moving)

    def differentiate(self, minibatch: Batch) -> tuple[Metrics, Tensor]:
        """Return the losses' metrics, each (P,), and their gradient (P, D)."""
        losses, metrics = self.learner.loss(minibatch)
        return metrics, self.learner.policy.parameters.gradient(losses)

    @property
    def capturable(self) -> bool:
        """Return whether a step can run as a CUDA graph."""
        return self.learner.capturable


class KernelGradients(TorchSteps):
    """Gradient steps one by one, whose gradients kernels compute.

    They serve where gradients are mixed, or parameters have different learning rates.
    """

    def __init__(self, learner: OnPolicyLearner, policy: CompiledActorCritic):
        super().__init__(learner)
        self.policy = policy

    def differentiate(self, minibatch: Batch) -> tuple[Metrics, Tensor]:
        policy, terms = self.policy, self.learner.kernel()
        policy.run.differentiate(policy.experience(minibatch), policy.networks, terms, policy.slope)
        return policy.metrics(terms), policy.gradient


class KernelSteps:
    """All gradient steps of a pass by one call of a kernel."""

    def __init__(self, learner: OnPolicyLearner, policy: CompiledActorCritic):
        self.learner, self.policy = learner, policy
        self.descent = CompiledDescent(learner.optimizer, learner.hp.max_grad_norm, policy.gradient)

    def __call__(self, batch: Batch, lr: Tensor, active: Tensor | None) -> tuple[Metrics, Clipped]:
        """Do what `TorchSteps` does."""
        learner, hp, policy, limit = self.learner, self.learner.hp, self.policy, self.learner.target_kl
        moving = torch.ones_like(lr, dtype=torch.bool) if active is None else active.clone()
        stopping = (moving.numpy(), limit is not None, (lr if limit is None else limit).contiguous().numpy())
        terms = learner.kernel()
        constant = (policy.experience(batch), policy.networks, terms, policy.slope, self.descent.at(lr))
        rows = batch["log_probs"].shape[1]
        for number, order in enumerate(permutations(learner.order, learner.iterations, hp.update_epochs, rows)):
            tick()
            with FlushedDenormals():
                policy.run.descend(Pass(order.numpy(), hp.num_minibatches, number == 0, *stopping), *constant)
            if not moving.any():
                break
        return policy.metrics(terms), self.descent.clipped
