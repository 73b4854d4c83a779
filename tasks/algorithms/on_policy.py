"""What PPO, A2C and their kind share: an actor-critic that learns from rollouts of its own policy.

What Stable-Baselines3 calls its arguments, and what they are here:

    learning_rate                       optimizer.lr
    n_steps, n_epochs                   num_steps, update_epochs
    batch_size                          num_minibatches = num_steps * num_envs / batch_size
    clip_range, clip_range_vf           clip_coef, clip_value (PPO2 clips values by clip_coef unless it has this one)
    a function of the progress          lr_schedule, clip_coef_schedule, clip_value_schedule, ent_coef_schedule: over a
                                        horizon of environment steps, or with name "piecewise" by points
    vf_coef                             vf_coef = 2 * theirs, whose value loss lacks the factor 1/2
    gamma, gae_lambda, ent_coef, max_grad_norm, target_kl, normalize_advantage, use_sde, sde_sample_freq,
    stats_window_size                   the same; normalize_advantage may also be "running"
    (none)                              critic_lr, a learning rate of the critic's own
    use_rms_prop, rms_prop_eps          optimizer.name = "rmsprop", optimizer.eps
    policy_kwargs: net_arch             model.width, model.layers, alike for actor and critic, which share nothing
        activation_fn, ortho_init       model.activation, always orthogonal
        features_extractor_class        model.encoder, where the environment shows images, see `encoders`
        log_std_init                    model.std_init = exp(log_std_init); with use_sde times sqrt(model.width)
        full_std, use_expln             always one deviation for each activation and action, always exp
    optimizer_class, optimizer_kwargs   optimizer
    seed, device, env                   of the task, not hyperparameters
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...spaces import Dimension, Space, categorical, integer, log_real, maybe, near_one, ordinal, real
from ..experience.normalizers import RewardNormalizer
from ..experience.returns import RunningStandardizer, gae, lambda_returns, standardize
from ..experience.rollout import Rollout, by_member, by_sequence, collect, evaluate_values, value_cuts
from ..networks.actor_critic import model_space
from ..networks.grad_norms import mask, norms, places
from ..networks.optimizers import (
    Clipped,
    Optimizer,
    clip_norm,
    decay,
    decay_space,
    optimizer_space,
    schedule,
    schedule_space,
)
from ..networks.recurrent import sequences_first, with_states
from ..runtime.episode_window import window_size
from ..signals.guidance import Guidance, check_guidance, guidance_space
from .actor_critic_learner import ActingLearner

SCHEDULES = ("ent_coef_schedule", "clip_coef_schedule", "clip_value_schedule")


def on_policy_space(
    lr: float, optimizer: str = "adam", num_steps: int = 128, steps: Sequence[int] = (32, 64, 128, 256), **more: Any
) -> Space:
    """The hyperparameters that all on-policy algorithms have, and `more` of an algorithm's own; `steps`: to search."""
    return Space(
        optimizer=optimizer_space(lr=lr, name=optimizer, eps=1e-5),
        lr_schedule=schedule_space(),
        model=model_space(),
        gamma=near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0)),
        gae_lambda=near_one(0.8, 0.999, default=0.95, accept=(0.0, 1.0)),
        ent_coef=log_real(1e-6, 1e-1, default=1e-3, accept=(0.0, 1e3)),
        ent_coef_schedule=decay_space(),
        vf_coef=real(0.2, 1.0, default=0.5, accept=(0.0, 1e3)),
        max_grad_norm=maybe(log_real(0.1, 5.0, accept=(1e-6, 1e6)), default=0.5),
        # Of the critic's own numbers, on the same schedule; None: the optimizer's.
        critic_lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False, silent=True),
        **more,
        # State-dependent exploration in a Box, see `tasks.sde`: drawn anew every so many steps; -1: once per rollout.
        use_sde=categorical(False, True, default=False, structural=True, search=False),
        sde_sample_freq=integer(-1, 1_000_000, default=-1, structural=True, search=False, when={"use_sde": True}),
        num_steps=ordinal(*steps, default=num_steps, accept=(1, 1_000_000), structural=True),
        num_envs=integer(1, 65536, default=8, structural=True, search=False),
        epoch_steps=integer(1, 10**9, default=4096, structural=True, search=False),
        normalize_obs=categorical(False, True, default=False, structural=True, search=False),
        normalize_reward=categorical(False, True, default=False, structural=True, search=False),
        stats_window_size=window_size(),
        **guidance_space(),
    )


def normalize_advantage(default: bool | str, search: bool = False) -> Dimension:
    """How advantages are standardized: not, within each minibatch (True), or by running moments of all so far."""
    return categorical(False, True, "running", default=default, structural=True, search=search)


class OnPolicyLearner(ActingLearner):
    """P members that act for num_steps, value what they saw, learn from it once, and forget it.

    Attributes:
        coupling: what turns the members' gradients (P, D) into others, where members learn from one another.
    """

    parts: ClassVar[tuple[str, ...]] = (
        "policy",
        "optimizer",
        "obs_normalizer",
        "reward_normalizer",
        "standardizer",
        "memory",
        "guidance",
    )
    scratch = (*ActingLearner.scratch, "descent", "factor")
    coupling: Callable[[Tensor], Tensor] | None = None
    descent: Clipped | None = None

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        cls.check_minibatches(values, "num_minibatches", values.get("num_minibatches", 1))
        if values.get("sde_sample_freq") == 0:
            raise ValueError(
                f"{cls.algorithm()}: sde_sample_freq must be -1, for once per rollout, or a number of "
                "steps, but got 0; try 1"
            )
        for name in SCHEDULES:
            of = name.removesuffix("_schedule")
            if name in values and values[name]["name"] != "constant" and values[of] is None:
                raise ValueError(
                    f"{cls.algorithm()}: {name} needs a {of} to act on, but {of} is None; "
                    f"give {of}, or leave {name} out"
                )
        check_guidance(values, cls.algorithm())

    @classmethod
    def check_minibatches(cls, values: Mapping[str, Any], name: str, parts: int) -> None:
        """ValueError unless a rollout can be cut into so many minibatches; with a memory, between environments only."""
        size, what = values["num_steps"] * values["num_envs"], "num_steps * num_envs"
        if values["model"]["memory"] != "none":
            size, what = values["num_envs"], "with a memory, num_envs"
        if size % parts:
            raise ValueError(
                f"{cls.algorithm()}: {what} ({size}) must be divisible by {name} ({parts}); "
                f"try {name}={math.gcd(size, parts)}"
            )

    def build(self) -> None:
        super().build()
        hp = self.hp
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        gamma = hp.gamma.cpu().double().numpy()
        self.reward_normalizer = RewardNormalizer(self.members, hp.num_envs, gamma) if hp.normalize_reward else None
        running = vars(hp).get("normalize_advantage") == "running"
        self.standardizer = RunningStandardizer(self.members) if running else None
        self.factor = torch.ones_like(hp.optimizer.lr)  # of the schedule, when the iteration began
        self.of_critic = mask(self.policy.parameters, "critic")
        self.order_keys = self.keys("order")
        self.guidance = Guidance.of(self)
        self.demonstrations = self.guidance.examples

    def truncate_all(self) -> None:
        self.reset(np.ones((self.members, self.hp.num_envs), np.bool_))

    def reset(self, where: np.ndarray) -> None:
        """Reset what was remembered of the running episodes of these environments, (P, N), which end here."""
        for part in (self.memory, self.reward_normalizer):
            if part is not None:
                part.reset(where)

    def rollout(self) -> dict[str, Tensor]:
        """num_steps in every environment, and what a loss needs of them, each (P, T * N, ...)."""
        rollout = self.play()
        return self.scale(self.prepare(rollout), rollout)

    def play(self) -> Rollout:
        """num_steps in every environment."""
        hp, memory, noise = self.hp, self.memory, self.noise()
        self.env_steps += hp.num_steps * hp.num_envs
        before = None if memory is None else memory.tensors["state"].clone()
        actor, reset = (self.policy, None) if memory is None else (memory, memory.reset)
        rollout = collect(
            self.envs, actor, noise, self.obs_normalizer, self.reward_normalizer, reset, self.guidance.needs_next_obs
        )
        return self.guidance.scale_extrinsic(replace(rollout, memory=before))

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> dict[str, Tensor]:
        """Values, advantages and returns of a rollout beside what was seen and done, each (P, T * N, ...).

        With a memory they are (P, N * T, ...), the steps of each environment in a row, and `begins` and `memory` are
        what `Core` needs.
        """
        obs, actions = rollout.obs[:, :-1], rollout.actions
        if self.memory is None:
            values, next_values = self.estimate(rollout)
            obs, actions, flat = obs.flatten(1, 2), actions.flatten(1, 2), by_member
            params, more = self.policy.policy(obs), {}
        else:
            params, values, next_values, begins = self.remember(rollout)
            obs, actions, flat = sequences_first(obs), sequences_first(actions), by_sequence
            assert rollout.memory is not None
            more = {"begins": flat(begins), "memory": rollout.memory}
        advantages = gae(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, self.hp.gamma, self.hp.gae_lambda
        )
        log_probs, _ = self.policy.distribution.log_prob_and_entropy(params, actions)
        returns = lambda_returns(advantages, values)
        return {
            "obs": obs,
            "actions": actions,
            "log_probs": log_probs,
            "values": flat(values),
            "advantages": flat(advantages),
            "returns": flat(returns),
            **more,
        }

    @torch.no_grad()
    def estimate(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """The critic's vₜ and v'ₜ, see `evaluate_values`."""
        if self.memory is None:
            return evaluate_values(rollout, self.policy.value)
        return self.remember(rollout)[1:3]

    def remember(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The policy's parameters (P, N * T, ...), vₜ, v'ₜ and where episodes begin (T, P, N), gone through anew."""
        assert self.memory is not None
        assert rollout.memory is not None
        num_envs, steps = rollout.memory.shape[1], len(rollout.rewards)
        # What was remembered before the first step is of the episode that goes on with it, or already forgotten.
        begins = torch.cat([torch.zeros_like(rollout.ended[:1]), rollout.ended])
        params, every, states = self.policy.sequences(
            sequences_first(rollout.obs), by_sequence(begins), rollout.memory, learning=False
        )
        form = (num_envs, steps + 1)
        values = every.unflatten(1, form).permute(2, 0, 1).contiguous()
        next_values = values[1:].clone()
        if rollout.cuts:
            value_cuts(with_states(rollout.cuts, states), self.memory.value_after, next_values)
        params = params.unflatten(1, form)[:, :, :-1].flatten(1, 2).contiguous()
        return params, values[:-1], next_values, begins[:-1]

    def scale(self, batch: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor]:
        """The batch with all advantages, by the running standardizer if there is one; called once for each rollout."""
        batch = self.guidance.augment_batch(batch, rollout)
        if self.standardizer is not None:
            batch["advantages"] = self.standardizer(batch["advantages"])
        return batch

    def advantages(self, batch: Mapping[str, Tensor]) -> Tensor:
        """A minibatch's advantages (P, B), standardized within it if `normalize_advantage` is True."""
        if self.hp.normalize_advantage is not True:
            return batch["advantages"]
        return standardize(batch["advantages"], batch.get("weights"))

    def descend(self, losses: Tensor, lr: Tensor, active: Tensor | None = None) -> None:
        """One step down each member's loss (P,) at learning rates (P, 1), of the members that are `active` (P, 1)."""
        gradient = self.policy.parameters.gradient(losses)
        if self.coupling is not None:
            gradient = self.coupling(gradient)
        self.descent = clip_norm(gradient, self.hp.max_grad_norm)
        self.optimizer.step(self.descent.gradient, self.rates(lr), active)

    def rates(self, lr: Tensor) -> Tensor:
        """The learning rates of all parameters, (P, 1), or (P, D) where the critic's own is another."""
        own = self.hp.critic_lr
        return lr if own is None else torch.where(self.of_critic, own * self.factor, lr)

    def updates(self, member: int) -> int:
        return int(self.optimizer.tensors["steps"][member])

    def norms(self) -> dict[str, Tensor]:
        """The sizes of the last gradient, see `grad_norms`, each (P,)."""
        assert self.descent is not None
        return norms(self.descent, places(self.policy.parameters.shapes))

    def learn(self, batch: Mapping[str, Tensor], lr: Tensor) -> dict[str, Tensor]:
        """All steps on a batch; what to report of the last one. A member whose approx_kl passes 1.5 target_kl stops."""
        hp = self.hp
        active = None if hp.target_kl is None else torch.ones_like(lr, dtype=torch.bool)
        report: dict[str, Tensor] = {}
        for minibatch in self.minibatches(batch, hp, self.order_keys):
            losses, report = self.loss(minibatch)
            if active is not None:
                active &= report["approx_kl"].unsqueeze(1) <= 1.5 * hp.target_kl
            self.descend(losses, lr, active)
        return {**report, **self.norms(), **self.follow(batch, lr)}

    def follow(self, batch: Mapping[str, Tensor], lr: Tensor, active: Tensor | None = None) -> dict[str, Tensor]:
        """Learns what there is beside the environment's rewards, after an update; what to report."""
        return self.guidance.update(self, batch, lr, active)

    def coefficient(self, name: str) -> Tensor:
        """The hyperparameter (P, 1) at this moment, by `<name>_schedule`."""
        value: Tensor = getattr(self.hp, name)
        plan = getattr(self.hp, f"{name}_schedule")
        return value if plan.name == "constant" else value * decay(plan, torch.full_like(value, self.env_steps))

    def scheduled(self) -> dict[str, Tensor]:
        """The coefficients that change over time, and the critic's learning rate, as they are now, each (P,)."""
        plans = {name.removesuffix("_schedule"): plan for name, plan in vars(self.hp).items() if name in SCHEDULES}
        found = {name: self.coefficient(name)[:, 0] for name, plan in plans.items() if plan.name != "constant"}
        if (own := self.hp.critic_lr) is not None:
            found["critic_lr"] = (own * self.factor)[:, 0]
        return found

    def schedule(self) -> Tensor:
        """The factor (P, 1) on learning rates at this moment."""
        return schedule(self.hp.lr_schedule, torch.full_like(self.hp.optimizer.lr, self.env_steps))

    def learning_rate(self) -> Tensor:
        """The members' learning rates (P, 1) by the schedule, at this moment."""
        self.factor = self.schedule()
        lr: Tensor = self.hp.optimizer.lr * self.factor
        return lr
