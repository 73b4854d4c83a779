"""Deep Q-learning (DQN): Mnih et al. (2015), doi:10.1038/nature14236.

The parts of Rainbow, Hessel et al. (2018), arXiv:1710.02298, are independent options: double Q-learning, dueling
networks, prioritized replay, n-step returns, noisy networks and distributions of returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ....spaces import Dimension, Space, categorical, integer, log_real, maybe, ordinal, real, sizes
from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...envs.base.observations import Observations
from ...errors import UnsupportedSpace
from ...experience.exploration import Epsilon, EpsilonGreedy, epsilon_space
from ...experience.returns import clipped_square, critic_loss_choice
from ...experience.sequence_replay import Sequences, sequence_space
from ...networks.encoders import Unlearned, encoder_space
from ...networks.masked_logits import FORBIDDEN, allowed_in
from ...networks.optimizers import norms, optimizer_of, optimizer_space, schedule_space
from ...rng.draws import Normals
from ...rng.streams import Keys
from ...signals.replay_guidance import make_replay_guidance
from ...task import Task
from ..off_policy import check_replay_in_env, off_policy_space
from ..off_policy_learner import OffPolicyLearner
from .distributions import DISTRIBUTIONS, ReturnDistribution, distribution_space
from .networks import NOISES, QImitator, QMemory, QNetwork, RecurrentQNetwork, Values
from .steps import FORMS, QSteps


def dqn_space(lr: float, **more: Dimension | Space | None) -> Space:
    """Return the hyperparameters of deep Q-learning.

    Every `target_interval` gradient steps, the target network moves by the fraction `tau` towards the online one. tau =
    1 copies it, as in the paper (with a target_interval of 100, say); the default averages (Polyak).

    Args:
        lr: default learning rate.
        more: further hyperparameters of the algorithm, or others in place of those of the same name; None leaves one
            out.
    """
    first: dict[str, Dimension | Space | None] = {
        "optimizer": optimizer_space(lr=lr, eps=1e-8),
        "lr_schedule": schedule_space(),
        "model": model_space(),
        "exploration": epsilon_space(),
        "double": categorical(False, True, default=True, structural=True),
        "target_interval": integer(1, 5000, log=True, default=1, accept=(1, 10**9)),
        "tau": log_real(0.003, 1.0, default=0.005, accept=(0.0, 1.0)),
        "critic_loss": replace(critic_loss_choice("huber"), when={"distribution": "none"}),
        "max_grad_norm": maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=10.0),
        **off_policy_space(n_step=3),
    }
    return Space(**{name: entry for name, entry in {**more, **first, **more}.items() if entry is not None})


def model_space() -> Space:
    """Return the hyperparameters of the networks."""
    rest: dict[str, Any] = {"structural": True, "search": False, "silent": True}
    return Space(
        width=ordinal(32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
        hidden=sizes(1, 65536, silent=True),  # widths of the hidden layers, if they differ
        layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
        activation=categorical("tanh", "relu", "silu", "elu", default="relu", structural=True, search=False),
        dueling=categorical(False, True, default=False, structural=True),
        **encoder_space(),
        memory=categorical("none", "lstm", "gru", default="none", **rest),
        **sequence_space(),
        noisy=categorical(False, True, default=False, **rest, help="explore by noise in the weights (noisy networks)"),
        noisy_std=real(
            0.1,
            1.0,
            default=0.5,
            accept=(0.0, 10.0),
            search=False,
            structural=True,
            when={"noisy": True},
            help="initial standard deviation of that noise, times the root of a layer's inputs",
        ),
    )


class DQNLearner(OffPolicyLearner):
    """P members of DQN."""

    policy: QNetwork
    knows_masks = True
    hyperparameters = dqn_space(lr=1e-3, **distribution_space())
    parts = (*OffPolicyLearner.parts, "optimizer")
    in_kernel = ("update", "step", "losses", "targets", "total_reward", "guide")

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        if values.get("distribution") == "categorical" and values["v_min"] >= values["v_max"]:
            raise ValueError(
                f"{cls.algorithm()}: v_min must be below v_max, but they are {values['v_min']} and {values['v_max']}; "
                "give the least and the greatest return that you expect"
            )

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        idle = [f"exploration.{name}" for name in epsilon_space().flat()] if fixed.get("model.noisy") else []
        return idle + super().without_effect(env, fixed)

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        space = spaces_of(env).action
        if not isinstance(space, gym.spaces.Discrete):
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id} chooses among the actions of a Discrete space, but got {space}; "
                "use PPO, or wrap the environment in a gymnasium.ActionWrapper that offers a Discrete space"
            )

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        check_replay_in_env(cls, env, values)
        masked = Observations(spaces_of(env).observation, env.id).mask is not None
        if masked and values["model"]["memory"] != "none":
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id}: a memory hides the action mask from the values, but model.memory is "
                f"{values['model']['memory']!r}; leave it out, or use ppo"
            )

    def build(self) -> None:
        super().build()
        hp, actions = self.hp, self.uniform_actions.largest + 1
        self.distribution = self.distribution_of(hp)
        self.policy = self.new_policy(self.seeds)
        self.memory = self.policy.memory(hp.num_envs)
        if isinstance(self.memory, QMemory):
            state_size = self.memory.tensors["state"].shape[-1]
            self.sequences = Sequences(self.replay, self.keys("replay"), state_size, hp)
            self.memory.remember = self.sequences.remember
        self.optimizer = optimizer_of(self.policy.parameters.vector, hp.optimizer)
        self.guidance = make_replay_guidance(self, QImitator(self.policy))
        self.demonstrations = self.guidance.examples
        self.exploration = EpsilonGreedy(self.keys("explore"), actions, hp.num_envs)
        self.epsilon = Epsilon(hp.exploration)
        self.limit = math.inf if vars(hp).get("critic_loss") == "mse" else 1.0  # error beyond which the loss is linear
        self.noise = self.noise_of(self.keys)
        self.update_noise = Normals(self.keys("update noise"), (NOISES, self.policy.noise_size), self.device)
        self.target_interval = hp.target_interval.long().cpu().numpy()

    def new_policy(self, seeds: list[int]) -> QNetwork:
        """Return networks that are drawn from seeds."""
        network = QNetwork if self.hp.model.memory == "none" else RecurrentQNetwork
        actions = self.uniform_actions.largest + 1
        return network(self.envs.obs_shape, actions, self.hp, seeds, self.device, self.distribution)

    def new_parts(self, seeds: list[int]) -> dict[str, Stacked]:
        return {
            "policy": self.new_policy(seeds),
            "optimizer": optimizer_of(self.policy.parameters.vector, self.hp.optimizer),
        }

    @classmethod
    def distribution_of(cls, hp: SimpleNamespace) -> ReturnDistribution | None:
        """Return the form of distributions of returns; None for action values."""
        return None if hp.distribution == "none" else DISTRIBUTIONS[hp.distribution](hp)

    def noise_of(self, keys: Keys) -> Callable[[int], Tensor] | None:
        """Return the noise of acting, by step; None without."""
        size = self.policy.noise_size
        return Normals(keys("noise"), (size,), self.device) if size else None

    def explore(self, features: Tensor, position: int) -> np.ndarray:
        return self.act(features, position, self.epsilon(position * self.hp.num_envs), self.exploration, self.noise)

    def act(
        self,
        features: Tensor,
        step: int,
        epsilon: np.ndarray,
        exploration: EpsilonGreedy,
        noise: Callable[[int], Tensor] | None,
    ) -> np.ndarray:
        """Return actions (P, N) that explore by noise or by epsilon."""
        if noise is not None:
            return self._greedy(features, noise(step))
        return exploration(step, epsilon, partial(self._greedy, features), self.allowed(features))

    def allowed(self, features: Tensor) -> np.ndarray | None:
        """Return the mask (P, N, actions) in observations; None without one."""
        return None if self.mask is None else allowed_in(features, self.mask).cpu().numpy()

    def update(self, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        if self.policy.noise_size:
            batch = {**batch, "noise": self.update_noise(self.progress.updates)}
        result = self.step(batch, self.measured)
        due = self.progress.updates % self.target_interval == 0
        if due.any():
            self.policy.move_target(self.hp.tau, due)
        return result

    @captured
    def step(self, batch: Mapping[str, Tensor], measured: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Take the gradient step of `update`.

        The metrics include the gradient's norm if `measured`.
        """
        values = self.policy.of_batch(batch, self.hp.double)
        losses, errors = self.losses(batch, values)
        gradient, lr = self.policy.parameters.gradient(losses), self.scheduled(self.hp.optimizer.lr)
        step = self.optimizer.descend(gradient, lr, self.hp.max_grad_norm)
        sizes = norms(step, "q") if measured else {}
        return {"loss": losses.detach(), "q": self.mean_value(values), **sizes}, errors

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,) and metrics on a batch.

        The batch's tensors are (P, B, ...). No gradients are computed.
        """
        values = self.policy.of_batch(batch, self.hp.double, learn=False)
        return self.losses(batch, values)[0], {"q": self.mean_value(values)}

    def losses(self, batch: Mapping[str, Tensor], values: Values) -> tuple[Tensor, Tensor]:
        """Return each member's loss (P,), and errors (P, B) that are priorities."""
        weight = batch.get("weight", batch.get("mask"))
        if self.distribution is None:
            q = values.q.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
            errors = self.targets(batch, values) - q
            losses = clipped_square(errors, self.limit)
            return (losses if weight is None else losses * weight).mean(1), errors.detach()
        q, target = taken_of(values.q, batch["action"]), taken_of(values.target, self.next_actions(batch, values))
        losses, errors = self.distribution.losses(q, self.total_reward(batch), batch["discount"], target)
        return (losses if weight is None else losses * weight).mean(1), errors

    def mean_value(self, values: Values) -> Tensor:
        """Return the mean of the greatest values of a batch, (P,)."""
        return self.policy.means(values.q.detach()).amax(-1).mean(1)

    def next_actions(self, batch: Mapping[str, Tensor], values: Values) -> Tensor:
        """Return the next states' greedy actions (P, B), those of `targets`."""
        q = self.policy.means(values.target if values.online is None else values.online)
        if self.mask is not None:
            q = torch.where(allowed_in(batch["next_obs"], self.mask), q, FORBIDDEN)
        return q.argmax(-1)

    def targets(self, batch: Mapping[str, Tensor], values: Values) -> Tensor:
        """Return the targets y, (P, B), of a batch.

            y = r + discount q'(s', a'),   a' = argmax q'(s', ·), or argmax q(s', ·) if `double`

        q' is the target network. Double Q-learning: van Hasselt et al. (2016), arXiv:1509.06461, eq. 4. r is the n-step
        return plus the rewards of signals.

        Args:
            batch: tensors (P, B, ...).
            values: action values of the batch.
        """
        target, online = values.target, values.online
        if self.mask is not None:
            allowed = allowed_in(batch["next_obs"], self.mask)
            target = torch.where(allowed, target, FORBIDDEN)
            online = None if online is None else torch.where(allowed, online, FORBIDDEN)
            # At the end of an episode nothing may be allowed, and the value of what follows is 0.
            target = torch.where(allowed.any(-1, keepdim=True), target, 0.0)
        value = target.amax(-1) if online is None else target.gather(-1, online.argmax(-1, keepdim=True)).squeeze(-1)
        return self.total_reward(batch) + batch["discount"] * value

    def kernel(self) -> QSteps | None:
        policy = self.policy
        plain = type(policy) is QNetwork and type(policy.encoder) is Unlearned and type(policy.distribution) in FORMS
        form = {"policy": policy, "optimizer": self.optimizer, "limit": self.limit, "interval": self.target_interval}
        return QSteps.covering(self, [policy.perceptron if plain else None], **form)

    def acting(self, episodes: int, deterministic: bool, keys: Keys) -> Callable[[Tensor, int], np.ndarray]:
        if deterministic:
            return lambda features, step: self._greedy(features)
        exploration, noise = EpsilonGreedy(keys("explore"), self.exploration.actions, episodes), self.noise_of(keys)
        epsilon = self.epsilon(self.env_steps)
        return lambda features, step: self.act(features, step, epsilon, exploration, noise)

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, state = self.policy.remembered(self.normalize_batch(obs), state)
        values = self.policy.acting_values(features)
        if self.mask is not None:
            values = torch.where(allowed_in(features, self.mask), values, FORBIDDEN)
        return values.argmax(-1), state

    @torch.inference_mode()
    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        state = memory.tensors["state"] if isinstance(memory, QMemory) else None
        features, _ = self.policy.remembered(self.tensor(self.normalize(obs)), state)
        return self._allowed_values(features).max(-1)

    def _greedy(self, features: Tensor, noise: Tensor | None = None) -> np.ndarray:
        """Return greedy actions (P, N).

        Callers disable gradients, since `no_grad` here would take a tenth of the time.
        """
        actions: np.ndarray = self._allowed_values(features, noise).argmax(-1)
        return actions

    def _allowed_values(self, features: Tensor, noise: Tensor | None = None) -> np.ndarray:
        """Return q(s, ·), (P, N, actions), very low for forbidden actions."""
        values = self.policy.quick_values(features, noise)
        allowed = self.allowed(features)
        return values if allowed is None else np.where(allowed, values, np.float32(FORBIDDEN))


def taken_of(distributions: Tensor, actions: Tensor) -> Tensor:
    """Return the distributions (P, B, k) of actions (P, B)."""
    index = actions.unsqueeze(-1).unsqueeze(-1).expand(*actions.shape, 1, distributions.shape[-1])
    return distributions.gather(2, index).squeeze(2)


class DQN(Task):
    """Deep Q-learning on Discrete actions, with epsilon-greedy exploration.

    Mnih et al. (2015), doi:10.1038/nature14236, with Adam by default, and with the clipped error written as a Huber
    loss. The defaults are double Q-learning, three-step returns and a slowly moving target network, which learn more
    reliably than the paper's settings (double=False, n_step=1, target_interval=100, tau=1). Dueling networks and
    prioritized replay are options, and so is a memory that learns from sequences (`model.memory`), see `networks`.
    """

    name = "dqn"
    version = 5
    learner = DQNLearner
