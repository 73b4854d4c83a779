"""Soft actor-critic (SAC): Haarnoja et al. (2018), arXiv:1812.05905.

The discrete form follows Christodoulou (2019), arXiv:1910.07207.

A gradient step updates critics, actor, entropy coefficient and targets, in this order. The actor sees the updated
critics. The coefficient moves by the entropy that the actor had before its step. The targets follow the updated
critics. Losses are given for each row of a batch, (P, B); their gradients are those of the mean over the batch.

Notation: P members, N environments, B batch, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....spaces import Space, categorical, integer, log_real, maybe, ordinal, real, sizes
from ...cuda.graphs import captured
from ...envs import EnvSpec, StepResult, spaces_of
from ...errors import UnsupportedSpace
from ...evaluation import evaluation_keys
from ...experience.normalizers import RewardNormalizer
from ...experience.returns import critic_loss_choice
from ...experience.sequence_replay import REMEMBERS, Sequences
from ...networks.encoders import encoder_choice, needs_encoder
from ...networks.fused.losses import SoftSample, soft_value, twins
from ...networks.optimizers import Optimizer, clip_norm, network_spans, norms, optimizer_space, schedule_space
from ...rng.draws import Normals
from ...rng.streams import Keys
from ...signals.replay_guidance import make_replay_guidance
from ...task import Task
from ..off_policy import off_policy_space
from ..off_policy_learner import OffPolicyLearner
from .actions import Noise, SoftActions, no_noise
from .image_networks import ImageSoftActorCritic, RecurrentImageSoftActorCritic
from .networks import TWINS, Batch, FixedEntropy, LearnedEntropy, SoftActorCritic, SoftImitator
from .recurrent_networks import RecurrentSoftActorCritic, TrainingMemory

OPTIMIZERS = ("actor_optimizer", "critic_optimizer", "encoder_optimizer")


class SACLearner(OffPolicyLearner):
    """P members of SAC."""

    policy: SoftActorCritic
    coefficients: FixedEntropy | LearnedEntropy
    rewards: RewardNormalizer | None = None

    hyperparameters = Space(
        optimizer=optimizer_space(lr=3e-4, eps=1e-8),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=256, accept=(1, 65536), structural=True),
            hidden=sizes(2, 65536, silent=True),  # widths of the hidden layers, if they differ; below, the critics'
            critic_hidden=sizes(2, 65536, silent=True),
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
            activation=categorical("tanh", "relu", "elu", default="relu", structural=True, search=False),
            # With a recurrent core, a batch consists of sequences of `sequence_length` steps, each after `burn_in`
            # steps without gradients.
            memory=categorical("none", "lstm", "gru", default="none", structural=True, search=False),
            encoder=encoder_choice(),  # for images; policy and critics share it, see `image_networks`
            sequence_length=ordinal(8, 16, 32, default=16, accept=(1, 65536), structural=True, when=REMEMBERS),
            burn_in=ordinal(0, 4, 8, 16, default=8, accept=(0, 65536), structural=True, when=REMEMBERS),
        ),
        # `alpha` is the entropy coefficient, or its initial value if it is learned. The target entropy is -`target`
        # per continuous number, and `choice_target` log n for a choice of n.
        entropy=Space(
            learn=categorical(True, False, default=True, structural=True),
            alpha=log_real(1e-3, 1.0, default=1.0, accept=(1e-12, 1e6)),
            lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),  # None: the optimizer's
            target=real(0.25, 2.0, default=1.0, accept=(-100.0, 100.0), when={"learn": True}),
            choice_target=real(0.05, 0.98, default=0.3, accept=(0.0, 1.0), when={"learn": True}),
        ),
        critic_lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),  # None: the optimizer's
        # Every `target_update_interval` gradient steps, the targets take the fraction `tau` from the online critics.
        tau=log_real(0.001, 0.1, default=0.005, accept=(0.0, 1.0)),
        target_update_interval=integer(1, 10, default=1, accept=(1, 10**9)),
        critic_loss=critic_loss_choice(),
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=None),
        scale_reward=categorical(False, True, default=False, structural=True, search=False),
        # State-dependent exploration, see `actions`; its noise is drawn every `sde_sample_freq` steps. `sde_std_init`
        # is the initial standard deviation when all activations of the last hidden layer are 1 or -1.
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
    parts = (*OffPolicyLearner.parts, *OPTIMIZERS, "coefficients", "rewards")

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        SoftActions(spaces_of(env).action, f"{cls.algorithm()} on {env.id}")

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_values_in_env(env, values)
        where, space = f"{cls.algorithm()} on {env.id}", spaces_of(env).action
        if values["use_sde"] and not SoftActions(space, where).continuous_dim:
            raise UnsupportedSpace(f"{where}: use_sde explores in a Box of floats, but got {space}; leave use_sde out")

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        actions = SoftActions(spaces_of(env).action, f"{cls.algorithm()} on {env.id}")
        effects = {"entropy.target": actions.continuous_dim > 0, "entropy.choice_target": actions.num_discrete > 1}
        return [name for name, has_effect in effects.items() if not has_effect] + super().without_effect(env, fixed)

    def build(self) -> None:
        super().build()
        hp = self.hp
        self.actions = SoftActions(self.envs.action_space, f"{self.algorithm()} on {self.env.id}", self.device)
        self.build_networks()
        self.guidance = make_replay_guidance(self, SoftImitator(self.policy, self.actions))
        self.demonstrations = self.guidance.examples
        self.actor_optimizer = Optimizer(self.policy.actor_vector, hp.optimizer)
        vectors = self.policy.critic_vectors  # side by side in the critics' gradient
        self.critic_optimizers = {name: Optimizer(vector, hp.optimizer) for name, vector in vectors.items()}
        self.critic_optimizer = self.critic_optimizers["critic"]
        self.encoder_optimizer = self.critic_optimizers.get("encoder")
        self.critic_spans = network_spans({name: vector.shape[1:] for name, vector in vectors.items()})
        own_lrs = (hp.critic_lr, hp.entropy.lr)
        self.critic_lr, self.entropy_lr = (hp.optimizer.lr if lr is None else lr for lr in own_lrs)
        if hp.entropy.learn:
            self.coefficients = LearnedEntropy(hp.entropy.alpha, self.target_entropy(), hp.optimizer)
        else:
            self.coefficients = FixedEntropy(hp.entropy.alpha.repeat(1, self.actions.entropy_terms))
        if hp.scale_reward:
            self.rewards = RewardNormalizer(self.members, hp.num_envs, hp.gamma.cpu().double().numpy())
        shape = (2 * hp.batch_size, max(1, self.actions.continuous_dim))
        self.update_noise = Normals(self.keys("policy"), shape, self.device)
        self.noise = self.policy.noise(self.keys, hp.num_envs)
        self.target_interval = hp.target_update_interval.long()

    def build_networks(self) -> None:
        """Build the networks for vectors, images or sequences.

        For sequences, also build their sampler and the recurrent states for acting.
        """
        hp, envs = self.hp, self.envs
        rest = (self.actions, hp, self.seeds, self.device)
        remembers = hp.model.memory != "none"
        if needs_encoder(hp.model, envs.obs_shape):
            kind = RecurrentImageSoftActorCritic if remembers else ImageSoftActorCritic
            self.policy = kind(envs.obs_shape, *rest)
        else:
            self.policy = (RecurrentSoftActorCritic if remembers else SoftActorCritic)(envs.obs_shape[0], *rest)
        if isinstance(policy := self.policy, RecurrentSoftActorCritic):
            state_size = (1 + TWINS) * policy.state_size
            self.sequences = Sequences(self.replay, self.keys("replay"), state_size, hp)
            self.memory = TrainingMemory(policy, hp.num_envs, self.sequences)

    def target_entropy(self) -> Tensor:
        """Return the target entropies, (P, entropy_terms).

        They are -`target` per continuous number, and `choice_target` log n for a choice of n.
        """
        hp, k, n = self.hp.entropy, self.actions.continuous_dim, self.actions.num_discrete
        continuous = [-hp.target * k] if k else []
        discrete = [hp.choice_target * math.log(n)] if n > 1 else []
        return torch.cat(continuous + discrete, 1)

    # --- acting ---

    def explore(self, features: Tensor, position: int) -> np.ndarray:
        """Return random actions (P, N, ...) with the noise of this position."""
        return self._act(features, self.noise, position)

    def after_step(self, step: StepResult) -> None:
        """Update the scale of rewards, and reset ended episodes' states."""
        if self.rewards is not None:
            self.rewards.learn(step.reward[None], (step.terminated | step.truncated)[None])
        super().after_step(step)

    def actor(
        self, episodes: int, deterministic: bool = True, keys: Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        keys, memory = keys or partial(evaluation_keys, self.members), memory or self.acting_memory(episodes)
        noise, steps = no_noise if deterministic else self.policy.noise(keys, episodes), count()

        @torch.inference_mode()
        def act(obs: np.ndarray) -> np.ndarray:
            return self._act(memory(self.tensor(self.normalize(obs))), noise, next(steps))

        return act

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, state = self.policy.remembered(self.normalize_batch(obs), state)
        return self.actions.greedy(self.policy.outputs(self.policy.hidden(features))), state

    @torch.inference_mode()
    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        """Return the smaller of both critics' values of greedy actions, (P, N)."""
        if self.policy.cores:
            raise UnsupportedSpace(
                f"{self.algorithm()} on {self.env.id}: with model.memory, critics have recurrent states of their own, "
                "which acting does not advance, so that they give no value; use PPO, or leave model.memory out"
            )
        features = self.tensor(self.normalize(obs))
        numbers, _, logits = self.actions.split(self.policy.act(features)[0])
        q = self.policy.values(features, torch.tanh(numbers)).amin(1)  # (P, N, n)
        values: np.ndarray = (q.gather(-1, logits.argmax(-1, True)) if logits.shape[-1] else q)[..., 0].cpu().numpy()
        return values

    def _act(self, features: Tensor, noise: Noise, step: int) -> np.ndarray:
        outputs, z = self.policy.act(features)
        return self.actions.act(outputs, *noise(step, outputs, z))

    # --- learning ---

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        number = self.progress.updates
        tau = self.hp.tau * (number % self.target_interval == 0)
        with self.policy.autograd:
            return self.step(batch, self.update_noise(number), tau, self.measured)

    @captured
    def step(self, batch: Batch, noise: Tensor, tau: Tensor, measured: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Take the gradient step of `update`.

        Args:
            batch: tensors (P, B, ...).
            noise: standard normal numbers for the actions, (P, 2 B, k).
            tau: fraction by which the targets move, (P, 1); 0 leaves them.
            measured: whether metrics include the gradients' norms.
        """
        hp, policy, size, mask = self.hp, self.policy, self.hp.batch_size, batch.get("mask")
        reward, batch, alpha = self.total_reward(batch), policy.encode(batch), self.coefficients.alpha
        outputs, next_outputs = policy.outputs_of(batch)  # of the actor before its step
        sample, next_sample = self.actions.samples(outputs, next_outputs, noise, size, mask)

        critic_loss, errors, q = self.critic_loss(batch, reward, next_sample, alpha)
        of_critics = clip_norm(policy.critic_gradient(critic_loss), hp.max_grad_norm)
        self.step_critics(of_critics.gradient, self.scheduled(self.critic_lr))

        actor_loss = self.actor_loss(batch, sample, alpha)
        of_actor = clip_norm(policy.actor_gradient(actor_loss), hp.max_grad_norm)
        self.actor_optimizer.step(of_actor.gradient, self.scheduled(hp.optimizer.lr))

        entropies = masked(sample.entropies.detach(), mask).mean(1)
        self.coefficients.descend(entropies, self.scheduled(self.entropy_lr))
        policy.move_target(tau)
        report = {
            "critic_loss": critic_loss.detach().mean(1),
            "actor_loss": masked(actor_loss.detach(), mask).mean(1),
            "q": q,
            "alpha": alpha.mean(1),
            "entropy": entropies.sum(1),
        }
        if measured:
            report |= {**norms(of_actor, "actor"), **norms(of_critics, self.critic_spans)}
        return report, errors[:, 0]

    def step_critics(self, gradient: Tensor, lr: Tensor) -> None:
        """Take one step of the critics and, if any, of the encoder.

        The gradient has their parts side by side.
        """
        optimizers = self.critic_optimizers.values()
        parts = gradient.split([optimizer.vector.shape[1] for optimizer in optimizers], 1)
        for optimizer, part in zip(optimizers, parts, strict=True):
            optimizer.step(part.contiguous(), lr)

    def total_reward(self, batch: Batch) -> Tensor:
        """Return the scaled rewards (P, B) plus those of signals.

        Signals see observations before any encoder.
        """
        reward = batch["reward"] if self.rewards is None else self.rewards.scale(batch["reward"])
        return self.guidance.total(reward, batch)

    def critic_loss(
        self, batch: Batch, reward: Tensor, next_sample: SoftSample, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' losses, errors and mean values.

            J = mean Σᵢ ½ (y - qᵢ(s, a))²,   y = r + discount V'(s')

        arXiv:1812.05905, eq. 5. V' is the soft value of the target critics. `critic_loss` may replace the square.

        Args:
            batch: tensors (P, B, ...) with the actions that were taken.
            reward: r, the `total_reward`, (P, B).
            next_sample: actions for the next observations.
            alpha: entropy coefficients, (P, terms).

        Returns:
            Losses (P, B), errors y - qᵢ(s, a), (P, 2, B), and the mean of q, (P,).
        """
        numbers, choices = self.actions.normalize(batch["action"])
        q, next_q = self.policy.q_and_target(batch, numbers, next_sample.continuous)
        targets = reward + batch["discount"] * soft_value(next_q, next_sample, alpha)
        hp, mask = self.hp, batch.get("mask")
        weight, limit = batch.get("weight", mask), 1.0 if hp.critic_loss == "huber" else math.inf
        losses, errors, q = twins(q, choices, targets, weight, hp.batch_size, limit)
        return losses, errors, q.mean((1, 2)) if mask is None else masked(q.mean(1), mask).mean(1)

    def actor_loss(self, batch: Batch, sample: SoftSample, alpha: Tensor) -> Tensor:
        """Return the policy's losses (P, B).

            J = mean α log π(c|s) - minᵢ qᵢ(s, c)

        arXiv:1812.05905, eq. 9. The action c is a function of the policy's outputs and of noise, which lets the
        gradient pass.
        """
        return soft_value(self.policy.q(batch, sample.continuous), sample, alpha, sign=-1)

    @torch.no_grad()
    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's critic loss (P,) and metrics on a batch.

        The batch's tensors are (P, B, ...). The next actions are the medians of their distribution, without noise.
        """
        reward, batch = self.total_reward(batch), self.policy.encode(batch)
        outputs, next_outputs = self.policy.outputs_of(batch)
        noise = torch.zeros(1, 2 * outputs.shape[1], self.actions.continuous_dim, device=self.device)
        _, next_sample = self.actions.samples(outputs, next_outputs, noise, self.hp.batch_size)
        _, errors, q = self.critic_loss(batch, reward, next_sample, self.coefficients.alpha)
        return masked(errors.square().sum(1), batch.get("mask")).mean(1) / 2, {"q": q}

    @property
    def capturable(self) -> bool:
        return self.rewards is None and super().capturable

    def truncate_all(self) -> None:
        super().truncate_all()
        if self.rewards is not None:
            self.rewards.reset(np.ones((self.members, self.hp.num_envs), np.bool_))


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (P, B, ...) times a mask (P, B).

    Take means over the batch after it, not before.
    """
    return x if mask is None else x * mask.reshape(*mask.shape, *[1] * (x.ndim - 2))


class SAC(Task):
    """Soft actor-critic (SAC) with twin critics.

    It acts in bounded Boxes, in choices (several form one choice of all combinations), and in Dicts and Tuples of both.
    With a recurrent core (`model.memory`), policy and critics learn from sequences, see `sequence_replay`. For images,
    an encoder learns from the critics' loss alone, see `image_networks`.

    Haarnoja et al. (2018), arXiv:1812.05905; Christodoulou (2019), arXiv:1910.07207. tau is the fraction that the
    targets take from the online critics; some libraries name the fraction kept. Options beyond the papers: prioritized
    replay, n-step targets (without the entropies of the steps between), and a running reward scale.
    """

    name = "sac"
    version = 4
    learner = SACLearner
