"""Soft actor-critic: Haarnoja et al. (2018), arXiv:1812.05905; on choices Christodoulou (2019), arXiv:1910.07207.

A gradient step goes critics -> actor -> entropy coefficient -> targets: the actor sees the new critics, the coefficient
moves by the entropy that the actor had before its own step, and the targets follow the new critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....spaces import Space, categorical, integer, log_real, maybe, ordinal, real
from ...envs import EnvSpec, StepResult, spaces_of
from ...envs.base.encode import Observations
from ...errors import UnsupportedSpace
from ...evaluation import evaluation_keys
from ...experience.normalizers import RewardNormalizer
from ...experience.replay_buffer import Index
from ...experience.sequence_replay import Sequences, check_sequences
from ...networks.encoders import check_encoder, encoder_choice
from ...networks.optimizers import EVERY, Optimizer, Places, clip_norm, norms, optimizer_space, schedule, schedule_space
from ...rng.draws import Draws, Normals
from ...task import Task
from ..off_policy import OffPolicyLearner, off_policy_space
from .actions import Sample, SoftActions
from .image_networks import SeeingSoftActorCritic
from .networks import EntropyCoefficients, SoftActorCritic
from .recurrent_networks import RecurrentSoftActorCritic, SoftMemory

REMEMBERS = {"memory": ("lstm", "gru")}


class SACLearner(OffPolicyLearner):
    """P members of SAC."""

    hyperparameters = Space(
        optimizer=optimizer_space(lr=3e-4, eps=1e-8),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=256, accept=(1, 65536), structural=True),
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True),
            activation=categorical("tanh", "relu", "elu", default="relu", structural=True, search=False),
            # With a memory a batch is made of sequences of `sequence_length` steps, after `burn_in` others each.
            memory=categorical("none", "lstm", "gru", default="none", structural=True, search=False),
            encoder=encoder_choice(),  # of images, which policy and critics see by, see `soft_images`
            sequence_length=ordinal(8, 16, 32, default=16, accept=(1, 65536), structural=True, when=REMEMBERS),
            burn_in=ordinal(0, 4, 8, 16, default=8, accept=(0, 65536), structural=True, when=REMEMBERS),
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
        # State-dependent exploration, see `soft_sde`, drawn anew every so many steps; the first standard deviation is
        # that where all activations of the last hidden layer are 1 or -1.
        use_sde=categorical(False, True, default=False, structural=True, search=False),
        sde_sample_freq=integer(1, 1_000_000, default=64, structural=True, search=False, when={"use_sde": True}),
        sde_std_init=real(0.1, 1.5, default=1.0, accept=(1e-3, 100.0), search=False, when={"use_sde": True}),
        **{
            **off_policy_space(),
            "buffer_size": integer(1, 10**9, default=1_000_000, structural=True, search=False),
            "batch_size": ordinal(64, 128, 256, 512, default=256, accept=(2, 65536), structural=True),
            "num_steps": ordinal(1, 2, 4, 8, default=1, accept=(1, 1_000_000), structural=True),
            "num_updates": ordinal(1, 2, 4, default=1, accept=(1, 1_000_000), structural=True),
        },
    )
    parts = (
        "policy",
        "actor_optimizer",
        "critic_optimizer",
        "encoder_optimizer",
        "coefficients",
        "rewards",
        "replay",
        "priorities",
        "progress",
        "sequences",
        "memory",
        "obs_normalizer",
    )

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        if values["model"]["memory"] != "none":
            check_sequences(cls.algorithm(), values)

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        SoftActions(spaces_of(env).action, f"{cls.algorithm()} on {env.id}")

    @classmethod
    def check_use(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_use(env, values)
        place, space = f"{cls.algorithm()} on {env.id}", spaces_of(env).action
        check_encoder(values["model"], env, place)
        memory, seen = values["model"]["memory"], Observations(spaces_of(env).observation, env.id)
        if memory != "none" and seen.kind == "image":
            raise UnsupportedSpace(
                f"{place} remembers vectors, but got model.memory {memory!r} for images of shape "
                f"{seen.shape}; leave model.memory out, stack frames, or use PPO"
            )
        if values["use_sde"] and not SoftActions(space, place).numbers:
            raise UnsupportedSpace(f"{place}: use_sde explores in a Box of floats, but got {space}; leave use_sde out")

    def build(self) -> None:
        super().build()
        hp, envs, place = self.hp, self.envs, f"{self.algorithm()} on {self.env.id}"
        actions = self.actions = SoftActions(envs.action_space, place)
        spread = hp.sde_std_init if hp.use_sde else None
        made = (actions, hp.model, hp.batch_size, self.seeds, self.device, spread)
        self.memory: SoftMemory | None = None
        self.sequences: Sequences | None = None
        self.policy: SoftActorCritic
        self.encoder_optimizer: Optimizer | None = None
        self.of_critics: Places | str = "critic"  # whose the numbers of their gradient are
        if envs.obs_kind == "image":
            seeing = self.policy = SeeingSoftActorCritic(envs.obs_shape, *made)
            self.encoder_optimizer = Optimizer(seeing.encoder_vector, hp.optimizer)
            end, size = seeing.critic_vector.shape[1], seeing.encoder_vector.shape[1]
            self.of_critics = {"critic": [(0, end)], "encoder": [(end, end + size)]}
        elif hp.model.memory == "none":
            self.policy = SoftActorCritic(envs.obs_shape[0], *made)
        else:
            recurrent = self.policy = RecurrentSoftActorCritic(envs.obs_shape[0], *made, hp.n_step)
            self.memory = SoftMemory(recurrent, hp.num_envs)
            self.sequences = Sequences(
                self.replay,
                self.keys("replay"),
                self.memory.size,
                hp.batch_size,
                hp.model.sequence_length,
                hp.model.burn_in,
                hp.n_step,
            )
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
        self.sde_noise = Normals(self.keys("sde"), (hp.num_envs, numbers, hp.model.width), self.device)
        self.choice_noise = Draws(self.keys("choice"), (hp.num_envs, 1))
        self.target_interval = hp.target_update_interval.long()

    # --- acting ---

    def watch(self, obs: np.ndarray) -> None:
        if self.memory is not None and self.sequences is not None:
            self.sequences.remember(self.memory.tensors["state"])
            self.memory.see(self._tensor(obs))

    def explore(self, obs: np.ndarray, position: int) -> np.ndarray:
        seen = self._tensor(obs) if self.memory is None else self.memory.output
        z = self.policy.hidden(in_pairs(seen))
        outputs, z = (x[:, : self.hp.num_envs] for x in (self.policy.outputs(z), z))
        if self.hp.use_sde:
            noise = self.policy.perturbation(z, self.sde_noise(position // self.hp.sde_sample_freq))
        else:
            noise = self.actions.spread(outputs, self.action_noise(position))
        return self.actions.act(outputs, noise, self.choice_noise(position).copy())

    def actor(self, episodes: int, deterministic: bool = True) -> Callable[[np.ndarray], np.ndarray]:
        hidden, hp, steps = self.hidden(episodes), self.hp, count()
        numbers = max(1, self.actions.numbers)
        normals = Normals(evaluation_keys(self.members, "action"), (episodes, numbers), self.device)
        sde = Normals(evaluation_keys(self.members, "sde"), (episodes, numbers, hp.model.width), self.device)
        choices = Draws(evaluation_keys(self.members, "choice"), (episodes, 1))

        @torch.inference_mode()
        def greedy(obs: np.ndarray) -> np.ndarray:
            return self.actions.act(self.policy.outputs(hidden(obs))[:, :episodes], None, None)

        @torch.inference_mode()
        def explore(obs: np.ndarray) -> np.ndarray:
            step, z = next(steps), hidden(obs)
            outputs, z = (x[:, :episodes] for x in (self.policy.outputs(z), z))
            if hp.use_sde:
                noise = self.policy.perturbation(z, sde(step // hp.sde_sample_freq))
            else:
                noise = self.actions.spread(outputs, normals(step))
            return self.actions.act(outputs, noise, choices(step).copy())

        return greedy if deterministic else explore

    def hidden(self, episodes: int) -> Callable[[np.ndarray], Tensor]:
        """The policy's last activations (P, N or 2, width) for what is seen in so many episodes from their beginnings.

        A single environment stands there twice.
        """
        memory = SoftMemory(self.memory.networks, episodes, critics=False) if self.memory is not None else None

        def hidden(obs: np.ndarray) -> Tensor:
            seen = self._tensor(self.seen(obs))
            if memory is not None:
                memory.see(seen)
                seen = memory.output
            return self.policy.hidden(in_pairs(seen))

        return hidden

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)

    def observe(self, step: StepResult) -> None:
        ended = step.terminated | step.truncated
        if self.rewards is not None:
            self.rewards(step.reward, ended)
        if self.memory is not None:
            self.memory.reset(ended)

    def truncate_all(self) -> None:
        super().truncate_all()
        everywhere = np.ones((self.members, self.hp.num_envs), np.bool_)
        if self.rewards is not None:
            self.rewards.reset(everywhere)
        if self.memory is not None:
            self.memory.reset(everywhere)

    # --- learning ---

    def draw(self) -> tuple[Index, dict[str, Tensor]]:
        if self.sequences is None:
            return super().draw()
        return np.empty((self.members, 0), np.int64), self.sequences.batch(self.progress.updates, self.hp.gamma)

    @torch.inference_mode()
    def update(self, batch: Mapping[str, Tensor], lr: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        hp, policy, size, mask = self.hp, self.policy, self.hp.batch_size, batch.get("mask")
        alpha = self.alpha
        outputs = policy.policy(batch)  # the actor of the batch and of what followed is the one before its step
        both = Sample(self.actions, outputs, self.update_noise(self.progress.updates))
        sample, following = both.rows(0, size), both.rows(size, 2 * size)

        errors, choices, q = self.errors(batch, following, alpha)
        weight = batch.get("weight", mask)
        weighted = errors if weight is None else errors * weight.unsqueeze(1)
        gradient = policy.critic_gradient(self.of_choices(weighted / -size, choices))
        of_critics = clip_norm(gradient, hp.max_grad_norm)
        self.step_critics(of_critics.gradient, self.rate(hp.critic_lr, lr))

        q_of_policy = policy.q(batch, sample.numbers)
        values = masked(sample.value(q_of_policy, alpha), mask).mean(1)
        numbers = self.actions.numbers
        to_numbers = policy.numbers_gradient(sample.to_q(q_of_policy), numbers) if numbers else sample.numbers
        to_outputs = masked(sample.to_outputs(q_of_policy, alpha, to_numbers), mask)
        of_actor = clip_norm(policy.policy_gradient(to_outputs / -size), hp.max_grad_norm)
        self.actor_optimizer.step(of_actor.gradient, lr)

        entropies = masked(sample.entropies, mask).mean(1)
        if self.coefficients is not None:
            self.coefficients.step(entropies, self.target_entropy, self.rate(hp.entropy.lr, lr))
        policy.move_target(hp.tau * (self.progress.updates % self.target_interval == 0))
        report = {
            "critic_loss": (errors * weighted).sum(1).mean(1) / 2,
            "actor_loss": -values,
            "q": q,
            "alpha": alpha.mean(1),
            "entropy": entropies.sum(1),
        }
        if self.tally.count % EVERY == 0:
            report |= {**norms(of_actor, "actor"), **norms(of_critics, self.of_critics)}
        return report, errors[:, 0]

    def step_critics(self, gradient: Tensor, lr: Tensor) -> None:
        """One step of the critics, and of the encoder whose gradient stands behind theirs if there is one."""
        if self.encoder_optimizer is not None:
            size = self.policy.critic_vector.shape[1]
            self.encoder_optimizer.step(gradient[:, size:].contiguous(), lr)
            gradient = gradient[:, :size].contiguous()
        self.critic_optimizer.step(gradient, lr)

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
        q, next_q = self.policy.q_and_target(batch, numbers, following.numbers)
        targets = self.scaled(batch["reward"]) + batch["discount"] * following.value(next_q, alpha)
        if choices is not None:
            q = q.gather(-1, choices[:, None, :, None].expand(-1, 2, -1, 1))
        mask = batch.get("mask")
        mean = q.mean((1, 2, 3)) if mask is None else masked(q.mean((1, 3)), mask).mean(1)
        return targets.unsqueeze(1) - q.squeeze(-1), choices, mean

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
        outputs = self.policy.policy(batch)
        still = Sample(self.actions, outputs, torch.zeros(*outputs.shape[:2], self.actions.numbers, device=self.device))
        size = outputs.shape[1] // 2
        errors, _, q = self.errors(batch, still.rows(size, 2 * size), self.alpha)
        return masked(errors.square().sum(1), batch.get("mask")).mean(1) / 2, {"q": q}


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (P, B, ...) times the mask (P, B): before any mean is taken, so that what is masked does not count in it."""
    return x if mask is None else x * mask.reshape(*mask.shape, *[1] * (x.ndim - 2))


def in_pairs(x: Tensor) -> Tensor:
    """A single row (P, 1, ...) twice: one takes another path through the matrix products, see `affine`."""
    return torch.cat([x, x], 1) if x.shape[1] == 1 else x


class SAC(Task):
    """Soft actor-critic with twin critics, on bounded Box and Discrete actions, and Dicts and Tuples of both.

    With a memory (`model.memory`) policy and critics are recurrent and learn from sequences, see `sequences`. Of images
    they see what an encoder makes that learns from the critics' loss alone, see `soft_images`.

    Haarnoja et al. (2018), arXiv:1812.05905; Christodoulou (2019), arXiv:1910.07207. tau is the fraction that the
    targets take from the online critics (others name the fraction kept). Departs from the papers in what its options
    add: prioritized replay, n-step targets (without the entropies on the way), running reward scale.
    """

    name = "sac"
    version = 1
    learner = SACLearner
