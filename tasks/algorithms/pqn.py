"""Parallelized Q-network (PQN): Gallici et al. (2024), arXiv:2407.04811.

It is Q-learning without replay and without target networks, which layer normalization keeps stable. A rollout of
ε-greedy actions gives Q(λ) returns, on whose minibatches the network takes gradient steps. Default values are those of
CleanRL, with Adam in place of RAdam, and with eight environments of 32 steps in place of four of 128, since shorter
rollouts learn in fewer steps.

Notation: P members, B rows of a batch, T steps, N environments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, maybe, near_one, ordinal, real, sizes
from ..cuda.graphs import captured
from ..envs import EnvSpec, spaces_of
from ..envs.base.masks import mask_in
from ..errors import UnsupportedSpace
from ..evaluation.seeds import evaluation_keys
from ..experience.exploration import Epsilon, epsilon_space
from ..experience.normalizers import ObservationNormalizer, RewardNormalizer
from ..experience.returns import average, explained_variance, gae
from ..experience.rollout import Agent, StepNoise
from ..learner import Learner
from ..networks.actor_critic import ActorCritic
from ..networks.distributions import Categorical, Numbers
from ..networks.encoders import ENCODERS, check_encoder, encoder_for, encoder_space, unused_by_networks
from ..networks.layer_norm import LayerNormMLP
from ..networks.masked_logits import FORBIDDEN
from ..networks.mlp import Network, Parameters, actor_layers, initialize, shapes_of
from ..networks.optimizers import Clipped, norms, optimizer_of, optimizer_space, schedule, schedule_space
from ..rng.streams import Keys
from ..runtime.episode_window import window_size
from ..task import Task


class EpsilonChoice(Categorical):
    """The action of greatest value, or a random one.

    Noise is (..., 1 + n): whether to explore, 0 or 1, and a random number for each action.
    """

    def __init__(self, n: int):
        super().__init__(n)
        self.noise_size = 1 + n

    def noise(self, uniforms: Numbers) -> Numbers:
        return uniforms

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        allowed = params > FORBIDDEN / 2
        return self.mode(torch.where(noise[..., :1] > 0, torch.where(allowed, noise[..., 1:], -1.0), params))


class QPolicy(ActorCritic):
    """Action values q(s, ·) of P members, as the parameters of `EpsilonChoice`."""

    def __init__(self, obs_shape: tuple[int, ...], actions: int, model: SimpleNamespace, seeds: list[int], device: Any):
        """Initialize the networks, see `ActorCriticForm`."""
        self.encoder = encoder_for(model, "features", obs_shape)
        self.obs_shape, self.mask, self.actor_columns = obs_shape, mask_in(obs_shape), None
        self.distribution = EpsilonChoice(actions)
        widths = [self.encoder.features, *actor_layers(model), actions]
        self.actor = LayerNormMLP("q", widths, model.activation, last_gain=1.0)
        networks: list[Network] = [self.encoder, self.actor]
        self.parameters = initialize(networks, Parameters(shapes_of(networks), len(seeds), device), seeds)
        self.tensors = self.parameters.tensors
        self._views, self._leaves = (
            (tensors, self.actor.layers(tensors), [], None)
            for tensors in (self.parameters.views, self.parameters.leaves)
        )
        self._capturable = len(obs_shape) == 1 and model.encoder in ENCODERS

    def value(self, obs: Tensor) -> Tensor:
        """Return max q(s, ·), (P, B), without gradients."""
        return self.action_params(obs).amax(-1)

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return q(s, ·) and its maximum, with gradients."""
        tensors, layers, _, _ = self._leaves
        q = self._masked(self.actor(layers, self.encoder(tensors, batch["obs"])), batch["obs"])
        return q, q.amax(-1)


class ExploringNoise:
    """Noise of `EpsilonChoice`, by the number of a rollout."""

    def __init__(self, noise: StepNoise, epsilon: Callable[[int], np.ndarray]):
        """Store a source of uniform numbers, and ε (P, 1) by step."""
        self.noise, self.epsilon = noise, epsilon

    def __call__(self, rollout: int) -> Tensor:
        numbers, first = self.noise(rollout), rollout * self.noise.steps
        epsilon = np.stack([self.epsilon(first + step) for step in range(self.noise.steps)])  # (T, P, 1)
        limit = torch.from_numpy(epsilon).to(numbers)
        return torch.cat([(numbers[..., :1] < limit.unsqueeze(-1)).to(numbers), numbers[..., 1:]], -1)


class PQNLearner(Learner):
    """P members of PQN."""

    hyperparameters = Space(
        optimizer=optimizer_space(lr=2.5e-4, eps=1e-5),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=128, accept=(2, 65536), structural=True),
            hidden=sizes(2, 65536, silent=True),
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
            activation=categorical("tanh", "relu", "silu", "elu", default="relu", structural=True, search=False),
            **encoder_space(),
        ),
        exploration=epsilon_space(),
        gamma=near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0)),
        q_lambda=real(
            0.0, 1.0, default=0.65, help="weight of long returns in targets; raise it where rewards come late"
        ),
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=10.0),
        update_epochs=integer(1, 10, default=4, accept=(1, 1000), structural=True),
        num_minibatches=ordinal(2, 4, 8, 16, 32, default=4, accept=(1, 65536), structural=True),
        num_steps=ordinal(32, 64, 128, 256, default=32, accept=(1, 1_000_000), structural=True),
        num_envs=integer(1, 65536, default=8, structural=True, search=False),
        epoch_steps=integer(1, 10**9, default=4096, structural=True, search=False),
        normalize_obs=categorical(False, True, default=False, structural=True, weights=(2, 1)),
        normalize_reward=categorical(False, True, default=False, structural=True, search=False),
        stats_window_size=window_size(),
    )
    parts = ("optimizer",)
    knows_masks = True
    agent: Agent

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        size, parts = values["num_steps"] * values["num_envs"], values["num_minibatches"]
        if size % parts:
            raise ValueError(
                f"{cls.algorithm()}: num_steps * num_envs ({size}) must be divisible by num_minibatches ({parts}); try "
                f"num_minibatches={math.gcd(size, parts)}"
            )

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        if not isinstance(space := spaces_of(env).action, gym.spaces.Discrete):
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id} chooses among the actions of a Discrete space, but got {space}; use ppo"
            )

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        check_encoder(values["model"], env, f"{cls.algorithm()} on {env.id}")

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        return unused_by_networks(env, fixed)

    def build(self) -> None:
        hp, envs = self.hp, self.envs
        policy = QPolicy(envs.obs_shape, int(envs.action_space.n), hp.model, self.seeds, self.device)  # type: ignore[attr-defined]
        self.epsilon = Epsilon(hp.exploration)

        def noise(keys: Keys, num_envs: int, steps: int, epsilon: Callable[[int], np.ndarray]) -> ExploringNoise:
            return ExploringNoise(StepNoise(keys("action"), policy.distribution, steps, num_envs, self.device), epsilon)

        def acting_noise(episodes: int, keys: Keys | None) -> ExploringNoise:
            now = self.epsilon(self.env_steps)
            return noise(keys or partial(evaluation_keys, self.members), episodes, 1, lambda step: now)

        scales_obs = hp.normalize_obs and envs.obs_kind == "vector"
        self.agent = Agent(
            policy,
            noise(self.keys, hp.num_envs, hp.num_steps, lambda step: self.epsilon(step * hp.num_envs)),
            acting_noise,
            hp.num_envs,
            ObservationNormalizer(self.members, envs.obs_shape[0], policy.mask) if scales_obs else None,
            RewardNormalizer(self.members, hp.num_envs, hp.gamma.cpu().double().numpy())
            if hp.normalize_reward
            else None,
        )
        self.optimizer = optimizer_of(policy.parameters.vector, hp.optimizer)
        self.order = self.keys("order")

    def iterate(self) -> Mapping[str, Tensor]:
        hp = self.hp
        lr = hp.optimizer.lr * schedule(hp.lr_schedule, torch.full_like(hp.optimizer.lr, self.env_steps))
        batch = self.collect()
        self.env_steps += hp.num_steps * hp.num_envs
        metrics: dict[str, Tensor] = {}
        for part in self.agent.minibatches(batch, self.order, self.iterations, hp.update_epochs, hp.num_minibatches):
            metrics, gradient = self.step(part, lr)
        variance = explained_variance(batch["values"], batch["returns"], batch.get("weights"))
        return {**metrics, **norms(gradient, "q"), "explained_variance": variance, "lr": lr.squeeze(1)}

    @torch.no_grad()
    def collect(self) -> dict[str, Tensor]:
        """Return a rollout as a batch with Q(λ) returns, (P, B, ...).

            Rₜ = rₜ + γ [λ Rₜ₊₁ + (1 - λ) max q(sₜ₊₁, ·)]

        These are the paper's λ-returns. R is r where the episode terminates, and r + γ max q(s', ·) where it is cut
        off.
        """
        hp, agent = self.hp, self.agent
        rollout = agent.collect(self.envs, self.iterations)
        values, following = agent.values(rollout)
        ends = rollout.terminated, rollout.ended
        returns = values + gae(rollout.rewards, values, following, *ends, hp.gamma, hp.q_lambda, rollout.present)
        rows = {"values": values, "returns": returns}
        if rollout.present is not None:
            rows["weights"] = rollout.present
        batch = agent.batch(rollout.obs[:, :-1], rollout.actions, rollout.ended)
        return batch | {name: agent.flatten(x) for name, x in rows.items()}

    @captured
    def step(self, batch: Mapping[str, Tensor], lr: Tensor) -> tuple[dict[str, Tensor], Clipped]:
        """Take one gradient step; return metrics and the gradient."""
        losses, metrics = self.loss(batch)
        gradient = self.agent.policy.parameters.gradient(losses)
        clipped = self.optimizer.descend(gradient, lr, self.hp.max_grad_norm)
        return {"loss": losses.detach(), **metrics}, clipped

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,), and the mean of max q.

            J = ½ mean (R - q(s, a))²

        The batch is (P, B, ...).
        """
        q, best = self.agent.policy(batch)
        chosen_q, weights = q.gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1), batch.get("weights")
        losses = 0.5 * average((chosen_q - batch["returns"]).square(), weights)
        return losses, {"q": average(best.detach(), weights)}

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph."""
        return self.device.type == "cuda" and self.hp.model.encoder in ENCODERS

    def updates(self) -> list[int]:
        return self.optimizer.tensors["steps"].flatten().int().tolist()


class PQN(Task):
    """Q-learning on rollouts, without replay, on Discrete actions.

    Gallici et al. (2024), arXiv:2407.04811.
    """

    name = "pqn"
    version = 1
    learner = PQNLearner
