"""Deep Q-learning (DQN): Mnih et al. (2015), doi:10.1038/nature14236.

Four parts of Rainbow, Hessel et al. (2018), arXiv:1710.02298, are independent options: double Q-learning, dueling
networks, prioritized replay and n-step returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ....spaces import Space, categorical, integer, log_real, maybe, ordinal, sizes
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...envs.base.encode import Observations
from ...errors import UnsupportedSpace
from ...evaluation import evaluation_keys
from ...experience.exploration import Epsilon, EpsilonGreedy, epsilon_space
from ...experience.returns import critic_loss_choice
from ...experience.sequence_replay import REMEMBERS, Sequences
from ...networks.encoders import encoder_choice
from ...networks.fused.losses import huber
from ...networks.masks import FORBIDDEN, allowed_in
from ...networks.optimizers import Optimizer, clip_norm, norms, optimizer_space, schedule_space
from ...rng.streams import Keys
from ...signals.replay_guidance import make_replay_guidance
from ...task import Task
from ..off_policy import check_replay_in_env, off_policy_space
from ..off_policy_learner import OffPolicyLearner
from .networks import QImitator, QMemory, QNetwork, RecurrentQNetwork, Values
from .steps import CompiledSteps


class DQNLearner(OffPolicyLearner):
    """P members of DQN."""

    policy: QNetwork
    knows_masks = True
    hyperparameters = Space(
        optimizer=optimizer_space(lr=1e-3, eps=1e-8),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
            hidden=sizes(1, 65536, silent=True),  # widths of the hidden layers, if they differ
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
            activation=categorical("tanh", "relu", "silu", "elu", default="relu", structural=True, search=False),
            dueling=categorical(False, True, default=False, structural=True),
            encoder=encoder_choice(),
            # With a recurrent core, a batch consists of sequences of `sequence_length` steps, each after `burn_in`
            # steps without gradients.
            memory=categorical("none", "lstm", "gru", default="none", structural=True, search=False, silent=True),
            sequence_length=ordinal(8, 16, 32, default=16, accept=(1, 65536), structural=True, when=REMEMBERS),
            burn_in=ordinal(0, 4, 8, 16, default=8, accept=(0, 65536), structural=True, when=REMEMBERS),
        ),
        exploration=epsilon_space(),
        double=categorical(False, True, default=True, structural=True),
        # Every `target_interval` gradient steps, the target network moves by the fraction `tau` towards the online
        # one. tau = 1 copies it, as in the paper (with a target_interval of 100, say); the default averages (Polyak).
        target_interval=integer(1, 1000, log=True, default=1, accept=(1, 10**9)),
        tau=log_real(0.003, 1.0, default=0.005, accept=(0.0, 1.0)),
        critic_loss=critic_loss_choice("huber"),
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=10.0),
        **off_policy_space(n_step=3),
    )
    parts = (*OffPolicyLearner.parts, "optimizer")
    in_kernel = ("learn", "update", "step", "targets", "guide")

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
        network = QNetwork if hp.model.memory == "none" else RecurrentQNetwork
        self.policy = network(self.envs.obs_shape, actions, hp, self.seeds, self.device)
        self.memory = self.policy.memory(hp.num_envs)
        if isinstance(self.memory, QMemory):
            state_size = self.memory.tensors["state"].shape[-1]
            self.sequences = Sequences(self.replay, self.keys("replay"), state_size, hp)
            self.memory.remember = self.sequences.remember
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.guidance = make_replay_guidance(self, QImitator(self.policy))
        self.demonstrations = self.guidance.examples
        self.exploration = EpsilonGreedy(self.keys("explore"), actions, hp.num_envs)
        self.epsilon = Epsilon(hp.exploration)
        self.limit = 1.0 if hp.critic_loss == "huber" else math.inf  # error beyond which the loss is linear
        self.target_interval = hp.target_interval.long().cpu().numpy()

    def explore(self, features: Tensor, position: int) -> np.ndarray:
        epsilon = self.epsilon(position * self.hp.num_envs)
        return self.exploration(position, epsilon, partial(self._greedy, features), self.allowed(features))

    def allowed(self, features: Tensor) -> np.ndarray | None:
        """Return the mask (P, N, actions) in observations; None without one."""
        return None if self.mask is None else allowed_in(features, self.mask).cpu().numpy()

    def update(self, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        with self.policy.autograd:
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
        q, weight = values.q, batch.get("weight", batch.get("mask"))
        losses, errors = huber(q, batch["action"], self.targets(batch, values), weight, self.limit)
        step = clip_norm(self.policy.gradient(losses), self.hp.max_grad_norm)
        self.optimizer.step(step.gradient, self.scheduled(self.hp.optimizer.lr))
        sizes = norms(step, "q") if measured else {}
        return {"loss": losses.detach(), "q": q.detach().amax(-1).mean(1), **sizes}, errors

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,) and metrics on a batch.

        The batch's tensors are (P, B, ...). No gradients are computed.
        """
        values = self.policy.of_batch(batch, self.hp.double, learn=False)
        weight = batch.get("weight", batch.get("mask"))
        losses, _ = huber(values.q, batch["action"], self.targets(batch, values), weight, self.limit)
        return losses, {"q": values.q.amax(-1).mean(1)}

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
        return self.guidance.total(batch["reward"], batch) + batch["discount"] * value

    def kernel(self) -> CompiledSteps | None:
        return CompiledSteps.covering(self, self.policy, self.optimizer, self.limit, self.target_interval)

    def actor(
        self, episodes: int, deterministic: bool = True, keys: Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        keys = keys or partial(evaluation_keys, self.members)
        exploration = EpsilonGreedy(keys("explore"), self.exploration.actions, episodes)
        epsilon, steps, memory = self.epsilon(self.env_steps), count(), memory or self.acting_memory(episodes)

        def act(obs: np.ndarray) -> np.ndarray:
            features = memory(self.tensor(self.normalize(obs)))
            greedy = partial(self._greedy, features)
            return greedy() if deterministic else exploration(next(steps), epsilon, greedy, self.allowed(features))

        return act

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

    def _greedy(self, features: Tensor) -> np.ndarray:
        """Return greedy actions (P, N).

        Callers disable gradients, since `no_grad` here would take a tenth of the time.
        """
        actions: np.ndarray = self._allowed_values(features).argmax(-1)
        return actions

    def _allowed_values(self, features: Tensor) -> np.ndarray:
        """Return q(s, ·), (P, N, actions), very low for forbidden actions."""
        values = self.policy.quick_values(features)
        allowed = self.allowed(features)
        return values if allowed is None else np.where(allowed, values, np.float32(FORBIDDEN))


class DQN(Task):
    """Deep Q-learning on Discrete actions, with epsilon-greedy exploration.

    Mnih et al. (2015), doi:10.1038/nature14236, with Adam by default, and with the clipped error written as a Huber
    loss. The defaults are double Q-learning, three-step returns and a slowly moving target network, which learn more
    reliably than the paper's settings (double=False, n_step=1, target_interval=100, tau=1). Dueling networks and
    prioritized replay are options, and so is a memory that learns from sequences (`model.memory`), see `networks`.
    """

    name = "dqn"
    version = 4
    learner = DQNLearner
