"""Deep Q-learning (DQN): Mnih et al. (2015), doi:10.1038/nature14236.

Four parts of Rainbow, Hessel et al. (2018), arXiv:1710.02298, are independent options: double Q-learning, dueling
networks, prioritized replay and n-step returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ....spaces import Space, categorical, integer, log_real, maybe, ordinal, sizes
from ...checkpoint.storage import Metrics
from ...cuda.graphs import captured
from ...envs import EnvSpec, StepResult, spaces_of
from ...errors import UnsupportedSpace
from ...evaluation import evaluation_keys
from ...experience.exploration import Epsilon, EpsilonGreedy, epsilon_space
from ...experience.returns import critic_loss_choice
from ...experience.sequence_replay import REMEMBERS, Sequences, check_sequences
from ...learner import Learner
from ...networks.encoders import ENCODERS, encoder_choice, unused_width
from ...networks.fused.losses import huber
from ...networks.optimizers import GRAD_NORM_INTERVAL, Optimizer, clip_norm, norms, optimizer_space, schedule_space
from ...networks.recurrent import ActingMemory
from ...rng.streams import Keys
from ...signals.replay_guidance import ReplayGuidance
from ...task import Task
from ..off_policy import REFILLABLE, ReplayLoop, check_replay, check_replay_in_env, off_policy_space
from .networks import QImitator, QMemory, QNetwork, RecurrentQNetwork, Values
from .steps import CompiledSteps


class DQNLearner(Learner):
    """P members of DQN."""

    scratch = (*Learner.scratch, "compiled_steps")
    policy: QNetwork
    memory: ActingMemory
    sequences: Sequences | None = None
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
    parts = (
        *("policy", "optimizer", "replay", "priorities", "progress", "obs_normalizer", "guidance"),
        *("sequences", "memory"),
    )
    refillable = REFILLABLE
    check_values_in_env = classmethod(check_replay_in_env)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        check_replay(cls, values)
        if values["model"].get("memory", "none") != "none":
            check_sequences(cls.algorithm(), values)

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
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        return unused_width(fixed)

    def build(self) -> None:
        hp, loop = self.hp, ReplayLoop(self)
        self.loop, self.replay, self.progress, self.priorities = loop, loop.replay, loop.progress, loop.sampler
        self.obs_normalizer, actions = loop.obs_normalizer, loop.uniform_actions.largest + 1
        network = QNetwork if hp.model.memory == "none" else RecurrentQNetwork
        self.policy = network(self.envs.obs_shape, actions, hp, self.seeds, self.device)
        self.memory = self.policy.memory(hp.num_envs)
        if isinstance(self.memory, QMemory):
            state_size = self.memory.tensors["state"].shape[-1]
            loop.sampler = self.sequences = Sequences(self.replay, self.keys("replay"), state_size, hp)
            self.memory.remember = self.sequences.remember
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.guidance = ReplayGuidance.of(self, QImitator(self.policy))
        self.demonstrations = self.guidance.examples
        self.exploration = EpsilonGreedy(self.keys("explore"), actions, hp.num_envs)
        self.epsilon = Epsilon(hp.exploration)
        self.limit = 1.0 if hp.critic_loss == "huber" else math.inf  # error beyond which the loss is linear
        self.target_interval = hp.target_interval.long().cpu().numpy()

    def iterate(self) -> dict[str, Tensor]:
        filling = self.loop.filling(self.env_steps)
        self.env_steps += self.loop.collect(self.env_steps, self.explore, self.observe, self.on_step)
        if filling:
            return {}
        if self.compiled_steps is not None:
            return self.compiled_steps(self.env_steps, self.tally.count % GRAD_NORM_INTERVAL == 0)
        return self.loop.learn(self.env_steps, self.update, self.guide)

    @cached_property
    def compiled_steps(self) -> CompiledSteps | None:
        """Gradient steps by kernels.

        None if those do not cover them, or a subclass has replaced a part of them.
        """
        parts = ("update", "step", "targets", "guide")
        own = all(getattr(type(self), name) is getattr(DQNLearner, name) for name in parts)
        return CompiledSteps.of(self) if own else None

    def observe(self, obs: np.ndarray) -> Tensor:
        """Return the heads' inputs for normalized observations (P, N, ...)."""
        return self.memory(self._tensor(obs))

    def explore(self, features: Tensor, position: int) -> np.ndarray:
        """Return epsilon-greedy actions (P, N) for the result of `observe`.

        The random numbers are those at this position of the members' streams.
        """
        return self.exploration(position, self.epsilon(position * self.hp.num_envs), partial(self._greedy, features))

    def on_step(self, step: StepResult) -> None:
        """Reset the recurrent states of episodes that ended."""
        self.memory.reset(step.terminated | step.truncated)

    def update(self, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Take one gradient step on a batch.

        Returns:
            Metrics, each (P,), and temporal-difference errors (P, B).
        """
        with self.policy.autograd:
            result = self.step(batch, self.tally.count % GRAD_NORM_INTERVAL == 0)
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
        self.optimizer.step(step.gradient, self.loop.scheduled(self.hp.optimizer.lr, self.env_steps))
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
        if values.online is None:
            value = values.target.amax(-1)
        else:
            value = values.target.gather(-1, values.online.argmax(-1, keepdim=True)).squeeze(-1)
        return self.guidance.total(batch["reward"], batch) + batch["discount"] * value

    def guide(self, batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        """Train signals and clone after a gradient step; return metrics."""
        return self.guidance.update(self, batch, number, self.loop.scheduled(self.hp.optimizer.lr, self.env_steps))

    def actor(
        self, episodes: int, deterministic: bool = True, keys: Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        keys = keys or partial(evaluation_keys, self.members)
        exploration = EpsilonGreedy(keys("explore"), self.exploration.actions, episodes)
        epsilon, steps, memory = self.epsilon(self.env_steps), count(), memory or self.acting_memory(episodes)

        def act(obs: np.ndarray) -> np.ndarray:
            greedy = partial(self._greedy, memory(self._tensor(self.loop.normalize(obs))))
            return greedy() if deterministic else exploration(next(steps), epsilon, greedy)

        return act

    def acting_memory(self, episodes: int) -> ActingMemory:
        return self.policy.memory(episodes)

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, state = self.policy.remembered(self.loop.normalize_batch(obs), state)
        return self.policy.acting_values(features).argmax(-1), state

    @torch.inference_mode()
    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        state = memory.tensors["state"] if isinstance(memory, QMemory) else None
        features, _ = self.policy.remembered(self._tensor(self.loop.normalize(obs)), state)
        values: np.ndarray = self.policy.quick_values(features).max(-1)
        return values

    def _greedy(self, features: Tensor) -> np.ndarray:
        """Return greedy actions (P, N).

        Callers disable gradients, since `no_grad` here would take a tenth of the time.
        """
        actions: np.ndarray = self.policy.quick_values(features).argmax(-1)
        return actions

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)

    # --- epochs ---

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        return self.loop.end_epoch(self, super().run_epoch(stop))

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph."""
        alike = self.loop.constant_lr and self.hp.model.encoder in ENCODERS and self.hp.model.memory == "none"
        return self.device.type == "cuda" and alike and type(self.guidance) is ReplayGuidance

    def updates(self) -> list[int]:
        return [self.progress.updates] * self.members

    def warm_started(self, member: int) -> None:
        self.progress.fills[member] = 2

    def refill(self, member: int) -> None:
        self.loop.refill_member(self.env_steps, member)

    def truncate_all(self) -> None:
        self.replay.truncate_all()
        self.memory.reset(np.ones((self.members, self.hp.num_envs), np.bool_))


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
