"""Proximal policy optimization with the joint loss: Schulman et al. (2017), arXiv:1707.06347."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..spaces import Space, categorical, integer, log_real, maybe, near_one, ordinal, real
from .actor_critic import ActorCritic, model_space
from .gae import explained_variance, gae, standardize
from .learner import Learner
from .normalizers import ObservationNormalizer, RewardNormalizer
from .optimizers import Optimizer, clip_norm, optimizer_space, schedule, schedule_space
from .rollout import Rollout, by_member, collect, draw_noise, evaluate_values, permutations, shuffled
from .task import Task


class PPOLearner(Learner):
    """P members of PPO."""

    hyperparameters = Space(
        optimizer=optimizer_space(lr=1e-3),
        lr_schedule=schedule_space(),
        model=model_space(),
        gamma=near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0)),
        gae_lambda=near_one(0.8, 0.999, default=0.95, accept=(0.0, 1.0)),
        clip_coef=real(0.1, 0.4, default=0.2, accept=(1e-6, 1e6)),
        clip_value=maybe(real(0.1, 10.0, accept=(1e-6, 1e6)), default=None),
        ent_coef=log_real(1e-6, 1e-1, default=1e-3, accept=(0.0, 1e3)),
        vf_coef=real(0.2, 1.0, default=0.5, accept=(0.0, 1e3)),
        max_grad_norm=maybe(log_real(0.1, 5.0, accept=(1e-6, 1e6)), default=0.5),
        target_kl=maybe(log_real(3e-3, 0.1, accept=(1e-6, 1e3)), default=None),
        update_epochs=integer(1, 10, default=4, accept=(1, 1000), structural=True),
        num_minibatches=ordinal(2, 4, 8, default=4, accept=(1, 65536), structural=True),
        num_steps=ordinal(32, 64, 128, 256, default=128, accept=(1, 1_000_000), structural=True),
        num_envs=integer(1, 65536, default=8, structural=True, search=False),
        epoch_steps=integer(1, 10**9, default=4096, structural=True, search=False),
        normalize_advantage=categorical(False, True, default=True, structural=True, search=False),
        normalize_obs=categorical(False, True, default=False, structural=True, search=False),
        normalize_reward=categorical(False, True, default=False, structural=True, search=False),
    )
    parts = ("policy", "optimizer", "obs_normalizer", "reward_normalizer")

    def build(self) -> None:
        hp = self.hp
        self.policy = ActorCritic(self.envs.obs_shape, self.envs.action_space, hp.model, self.seeds, str(self), self.device)
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.obs_normalizer = ObservationNormalizer(self.members, self.envs.obs_shape[0]) if hp.normalize_obs else None
        self.reward_normalizer = RewardNormalizer(self.members, hp.num_envs, hp.gamma.cpu().double().numpy()) if hp.normalize_reward else None
        self.action_keys, self.order_keys = self.keys("action"), self.keys("order")

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        size, parts = values["num_steps"] * values["num_envs"], values["num_minibatches"]
        if size % parts:
            raise ValueError(
                f"PPO: num_steps * num_envs ({size}) must be divisible by num_minibatches ({parts}); "
                f"try num_minibatches={math.gcd(size, parts)}"
            )

    def iterate(self) -> dict[str, Tensor]:
        hp = self.hp
        noise = draw_noise(self.policy, self.action_keys, self.iterations, (hp.num_steps, hp.num_envs), self.device)
        rollout = collect(self.envs, self.policy, noise, self.obs_normalizer, self.reward_normalizer)
        batch = self.prepare(rollout)
        lr = hp.optimizer.lr * schedule(hp.lr_schedule, torch.full_like(hp.gamma, self.env_steps))
        active = None if hp.target_kl is None else torch.ones_like(lr, dtype=torch.bool)
        for order in permutations(self.order_keys, self.iterations, hp.update_epochs, batch["advantages"].shape[1]):
            for minibatch in shuffled(batch, order, hp.num_minibatches):
                losses, report = self.loss(minibatch)
                gradient = clip_norm(self.policy.parameters.gradient(losses), hp.max_grad_norm)
                if active is not None:
                    active &= report["approx_kl"].unsqueeze(1) <= 1.5 * hp.target_kl
                self.optimizer.step(gradient, lr, active)
        self.env_steps += hp.num_steps * hp.num_envs
        report["explained_variance"] = explained_variance(batch["values"], batch["returns"])
        return {**report, "lr": lr.squeeze(1)}

    @torch.inference_mode()
    def prepare(self, rollout: Rollout) -> dict[str, Tensor]:
        """What the loss needs of a rollout, each (P, T * N, ...)."""
        values, next_values = evaluate_values(rollout, self.policy.value)
        advantages = gae(rollout.rewards, values, next_values, rollout.terminated, rollout.ended, self.hp.gamma, self.hp.gae_lambda)
        obs, actions = rollout.obs[:, :-1].flatten(1, 2), rollout.actions.flatten(1, 2)
        log_probs, _ = self.policy.distribution.log_prob_and_entropy(self.policy.policy(obs), actions)
        return {"obs": obs, "actions": actions, "log_probs": log_probs, "values": by_member(values),
                "advantages": by_member(advantages), "returns": by_member(advantages + values)}  # fmt: skip

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,)."""
        hp = self.hp
        params, values = self.policy(batch["obs"])
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        log_ratio = log_probs - batch["log_probs"]
        ratio = log_ratio.exp()
        advantages = standardize(batch["advantages"]) if hp.normalize_advantage else batch["advantages"]
        clipped = torch.clamp(ratio, 1 - hp.clip_coef, 1 + hp.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean(1)  # eq. 7
        if hp.clip_value is not None:
            values = batch["values"] + torch.clamp(values - batch["values"], -hp.clip_value, hp.clip_value)
        value_loss = 0.5 * (values - batch["returns"]).square().mean(1)
        mean_entropy = entropy.mean(1)
        losses = policy_loss + hp.vf_coef[:, 0] * value_loss - hp.ent_coef[:, 0] * mean_entropy  # eq. 9
        with torch.no_grad():
            approx_kl = (ratio - 1 - log_ratio).mean(1)
            clip_fraction = ((ratio - 1).abs() > hp.clip_coef).float().mean(1)
        return losses, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": mean_entropy,
                        "approx_kl": approx_kl, "clip_fraction": clip_fraction}  # fmt: skip

    @torch.inference_mode()
    def act(self, obs: np.ndarray) -> np.ndarray:
        seen = obs if self.obs_normalizer is None else self.obs_normalizer(obs, learn=False)
        params = self.policy.policy(torch.from_numpy(np.ascontiguousarray(seen)).to(self.device))
        return self.policy.distribution.mode(params).cpu().numpy()


class PPO(Task):
    """Proximal policy optimization with clipped surrogate and joint value loss, for every action space of Gymnasium.

    Schulman et al. (2017), arXiv:1707.06347; details as Huang et al. (2022), "The 37 implementation details of PPO".
    """

    name = "ppo"
    version = 1
    learner = PPOLearner
