"""Soft actor-critic: Haarnoja et al. (2018), arXiv:1812.05905; on choices Christodoulou (2019), arXiv:1910.07207.

A gradient step goes critics -> actor -> entropy coefficient -> targets: the actor sees the new critics, the coefficient
moves by the entropy that the actor had before its own step, and the targets follow the new critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..spaces import Space, categorical, integer, log_real, maybe, ordinal, real
from .draws import Draws, Normals
from .envs import EnvSpec, Step, spaces_of
from .envs.encode import Observations
from .errors import UnsupportedSpace
from .normalizers import RewardNormalizer
from .off_policy import OffPolicyLearner, off_policy_space
from .optimizers import Optimizer, clip_norm, optimizer_space, schedule, schedule_space
from .soft_actions import Sample, SoftActions
from .soft_networks import EntropyCoefficients, SoftActorCritic
from .task import Task


class SACLearner(OffPolicyLearner):
    """P members of SAC."""

    hyperparameters = Space(
        optimizer=optimizer_space(lr=3e-4, eps=1e-8),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=256, accept=(1, 65536), structural=True),
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True),
            activation=categorical("tanh", "relu", "elu", default="relu", structural=True, search=False),
        ),
        # `alpha` is the entropy coefficient, or the first one where it is learned. The entropy to learn for is
        # -`target` per number and `choice_target` log n for a choice of n.
        entropy=Space(
            learn=categorical(True, False, default=True, structural=True),
            alpha=log_real(1e-3, 1.0, default=1.0, accept=(1e-12, 1e6)),
            lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),  # None: the optimizer's
            target=real(0.25, 2.0, default=1.0, accept=(-100.0, 100.0), when={"learn": True}),
            choice_target=real(0.05, 0.98, default=0.3, accept=(0.0, 1.0), when={"learn": True}),
        ),
        critic_lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),  # None: the optimizer's
        # Every `target_update_interval` gradient steps the targets take the fraction `tau` from the online critics.
        tau=log_real(0.001, 0.1, default=0.005, accept=(0.0, 1.0)),
        target_update_interval=integer(1, 10, default=1, accept=(1, 10**9)),
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=None),
        scale_reward=categorical(False, True, default=False, structural=True, search=False),
        **{
            **off_policy_space(),
            "buffer_size": integer(1, 10**9, default=1_000_000, structural=True, search=False),
            "batch_size": ordinal(64, 128, 256, 512, default=256, accept=(2, 65536), structural=True),
            "num_steps": ordinal(1, 2, 4, 8, default=1, accept=(1, 1_000_000), structural=True),
            "num_updates": ordinal(1, 2, 4, default=1, accept=(1, 1_000_000), structural=True),
        },
    )
    parts = ("policy", "actor_optimizer", "critic_optimizer", "coefficients", "rewards",
             "replay", "priorities", "progress")  # fmt: skip

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        spaces, place = spaces_of(env), f"{cls.algorithm()} on {env.id}"
        SoftActions(spaces.action, place)
        seen = Observations(spaces.observation, env.id)
        if seen.kind != "vector":
            raise UnsupportedSpace(
                f"{place} sees vectors, but got images of shape {seen.shape}; use DQN or PPO, or add a wrapper that "
                "makes vectors of them"
            )

    def build(self) -> None:
        super().build()
        hp, envs, place = self.hp, self.envs, f"{self.algorithm()} on {self.env.id}"
        actions = self.actions = SoftActions(envs.action_space, place)
        self.policy = SoftActorCritic(envs.obs_shape[0], actions, hp.model, hp.batch_size, self.seeds, self.device)
        self.actor_optimizer = Optimizer(self.policy.actor_vector, hp.optimizer)
        self.critic_optimizer = Optimizer(self.policy.critic_vector, hp.optimizer)
        self.coefficients, self.target_entropy = None, torch.zeros(0)
        if hp.entropy.learn:
            self.coefficients = EntropyCoefficients(hp.entropy.alpha, actions.terms, hp.optimizer)
            of_numbers = [-hp.entropy.target * actions.numbers] if actions.numbers else []
            of_choices = [hp.entropy.choice_target * math.log(actions.choices)] if actions.choices > 1 else []
            self.target_entropy = torch.cat(of_numbers + of_choices, 1)
        gamma = hp.gamma.cpu().double().numpy()
        self.rewards = RewardNormalizer(self.members, hp.num_envs, gamma) if hp.scale_reward else None
        numbers = max(1, actions.numbers)
        self.update_noise = Normals(self.keys("policy"), (2 * hp.batch_size, numbers), self.device)
        self.action_noise = Normals(self.keys("action"), (hp.num_envs, numbers), self.device)
        self.choice_noise = Draws(self.keys("choice"), (hp.num_envs, 1))
        self.target_interval = hp.target_update_interval.long()

    # --- acting ---

    def explore(self, obs: np.ndarray, position: int) -> np.ndarray:
        return self.actions.act(self._outputs(obs), self.action_noise(position), self.choice_noise(position).copy())

    @torch.inference_mode()
    def act(self, obs: np.ndarray) -> np.ndarray:
        return self.actions.act(self._outputs(obs), None, None)

    def _outputs(self, obs: np.ndarray) -> Tensor:
        rows = obs.shape[1]
        if rows == 1:
            obs = obs.repeat(2, 1)  # a single row takes another path through the matrix products, see `affine`
        return self.policy.act(torch.from_numpy(np.ascontiguousarray(obs)).to(self.device))[:, :rows]

    def observe(self, step: Step) -> None:
        if self.rewards is not None:
            self.rewards(step.reward, step.terminated | step.truncated)

    # --- learning ---

    @torch.inference_mode()
    def update(self, batch: Mapping[str, Tensor], lr: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        hp, policy, obs, size = self.hp, self.policy, batch["obs"], self.hp.batch_size
        alpha = self.alpha
        outputs = policy.policy(torch.cat([obs, batch["next_obs"]], 1))  # the actor of both is the one before its step
        both = Sample(self.actions, outputs, self.update_noise(self.progress.updates))
        sample, following = both.rows(0, size), both.rows(size, 2 * size)

        errors, choices, q = self.errors(batch, following, alpha)
        weighted = errors if "weight" not in batch else errors * batch["weight"].unsqueeze(1)
        gradient = policy.critic_gradient(self.of_choices(weighted / -size, choices))
        self.critic_optimizer.step(clip_norm(gradient, hp.max_grad_norm), self.rate(hp.critic_lr, lr))

        q_of_policy = policy.q(obs, sample.numbers)
        values = sample.value(q_of_policy, alpha).mean(1)
        numbers = self.actions.numbers
        to_numbers = policy.numbers_gradient(sample.to_q(q_of_policy), numbers) if numbers else sample.numbers
        gradient = policy.policy_gradient(sample.to_outputs(q_of_policy, alpha, to_numbers) / -size)
        self.actor_optimizer.step(clip_norm(gradient, hp.max_grad_norm), lr)

        entropies = sample.entropies.mean(1)
        if self.coefficients is not None:
            self.coefficients.step(entropies, self.target_entropy, self.rate(hp.entropy.lr, lr))
        policy.move_target(hp.tau * (self.progress.updates % self.target_interval == 0))
        report = {"critic_loss": (errors * weighted).sum(1).mean(1) / 2, "actor_loss": -values,
                  "q": q, "alpha": alpha.mean(1), "entropy": entropies.sum(1)}  # fmt: skip
        return report, errors[:, 0]

    @property
    def alpha(self) -> Tensor:
        """The entropy coefficients (P, terms), or (P, 1) for all terms where they are fixed."""
        fixed: Tensor = self.hp.entropy.alpha
        return fixed if self.coefficients is None else self.coefficients.alpha

    def rate(self, own: Tensor | None, lr: Tensor) -> Tensor:
        """The optimizer's learning rate `lr`, or an `own` one on the same schedule."""
        if own is None:
            return lr
        return own * schedule(self.hp.lr_schedule, torch.full_like(own, self.env_steps))

    def errors(
        self, batch: Mapping[str, Tensor], following: Sample, alpha: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """y - qᵢ(s, a) of a batch (P, 2, B), the choices taken (P, B), and the mean of q (P,).

            y = r + discount V'(s'),   J = Σᵢ mean ½ (y - qᵢ(s, a))²

        arXiv:1812.05905, eq. 5, with the actions a that were taken; V' is the soft value of the target critics.
        """
        numbers, choices = self.actions.unit(batch["action"])
        q, next_q = self.policy.q_and_target(batch["obs"], numbers, batch["next_obs"], following.numbers)
        targets = self.scaled(batch["reward"]) + batch["discount"] * following.value(next_q, alpha)
        if choices is not None:
            q = q.gather(-1, choices[:, None, :, None].expand(-1, 2, -1, 1))
        return targets.unsqueeze(1) - q.squeeze(-1), choices, q.mean((1, 2, 3))

    def of_choices(self, g: Tensor, choices: Tensor | None) -> Tensor:
        """The gradient in q (P, 2, B, n) by that in the q of the choices taken, (P, 2, B)."""
        g = g.unsqueeze(-1)
        if choices is None:
            return g
        zeros = g.new_zeros(*g.shape[:-1], self.actions.choices)
        return zeros.scatter(-1, choices[:, None, :, None].expand(-1, 2, -1, 1), g)

    def scaled(self, reward: Tensor) -> Tensor:
        """Rewards over the standard deviation of the discounted return, as it is known now."""
        if self.rewards is None:
            return reward
        std = np.sqrt(self.rewards.moments.variance + 1e-8)
        return reward / torch.from_numpy(std).to(reward)

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's critic loss (P,) on a batch (P, B, ...), with the next actions at their medians."""
        outputs = self.policy.policy(torch.cat([batch["obs"], batch["next_obs"]], 1))
        still = Sample(self.actions, outputs, torch.zeros(*outputs.shape[:2], self.actions.numbers, device=self.device))
        size = batch["obs"].shape[1]
        errors, _, q = self.errors(batch, still.rows(size, 2 * size), self.alpha)
        return errors.square().sum(1).mean(1) / 2, {"q": q}


class SAC(Task):
    """Soft actor-critic with twin critics, on bounded Box and Discrete actions, and Dicts and Tuples of both.

    Haarnoja et al. (2018), arXiv:1812.05905; Christodoulou (2019), arXiv:1910.07207. tau is the fraction that the
    targets take from the online critics (others name the fraction kept). Departs from the papers in what its options
    add: prioritized replay, n-step targets (without the entropies on the way), running reward scale.
    """

    name = "sac"
    version = 1
    learner = SACLearner
