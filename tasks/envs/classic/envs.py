"""Vectorized classic control: all environments on one flat axis of arrays.

For any number of environments, a step costs one call of a kernel, or without kernels about thirty calls of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.envs import classic_control
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor

from ...compiled.loading import kernels
from ...compiled.records import EnvModel, RunningEpisodes
from ...rng import streams
from ...runtime.progress import tick
from ..base.actions import Actions
from ..base.envs import Array, Envs, Sample, StepResult, Tree, to_tensor
from ..base.spec import EnvSpec
from .dynamics import MODELS
from .on_device import DeviceRollouts, Running

BLOCK = 16  # number of episodes whose initial states are drawn together
NO_CHOICES, NO_NUMBERS = np.empty(0, np.int64), np.empty(0, np.float32)


def is_classic(spec: EnvSpec) -> bool:
    """Return whether this package has the equations of an environment."""
    return spec.id in MODELS and not spec.kwargs and not spec.wrappers and not spec.parameters and not spec.info


class ClassicEnvs(Envs):
    """Environments whose complete state is known, so a snapshot is exact."""

    mode = "snapshot"
    exact = True
    reason = "its state is a few numbers"
    obs_kind = "vector"

    def __init__(self, spec: EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str) -> None:
        super().__init__(spec, seeds, num_envs, purpose)
        self.model = MODELS[spec.id]
        scalar = getattr(classic_control, self.model.scalar)()
        self.obs_space, self.action_space = scalar.observation_space, scalar.action_space
        self.obs_shape = self.obs_space.shape or ()
        self.actions, box = Actions(self.action_space, spec.id), self.action_space
        self.bounds = np.array([box.low[0], box.high[0]] if isinstance(box, Box) else [0, 0], np.float32)
        self.limit = spec.max_episode_steps or self.model.limit
        self.shape = (self.num_members, num_envs)
        # Initial states of a block of episodes, (components, M, BLOCK), and their observations, (M, BLOCK, D).
        self.block = np.zeros(self.size, np.int64)
        self.starts = np.empty((len(self.model.start), self.size, BLOCK), self.model.dtype)
        self.first_obs = np.empty((self.size, BLOCK, *self.obs_shape), np.float32)
        self.checked = False
        self.on_device: DeviceRollouts | None = None
        self.reset()

    def reset(self) -> None:
        self._clear_episodes()
        numbers = range(self.first, self.first + self.num_envs)
        self.keys = np.array([streams.key(seed, self.purpose, n) for seed in self.seeds for n in numbers], np.uint64)
        self.episode = np.zeros(self.size, np.int64)
        self.returns = np.zeros(self.size)
        self.clock = 0  # steps since the reset
        self.started = np.zeros(self.size, np.int64)  # the clock at the start of the running episode
        self.first_limit = self.limit  # no running episode reaches its limit before this clock
        self._draw_starts(np.arange(self.size))
        self.state = self.starts[:, :, 0].astype(np.float64)  # (components, M)
        self.obs = self._observe()

    def step(self, actions: Array) -> StepResult:
        if not self.checked:  # at the first step only
            self.actions.check(actions, self.shape)
            self.checked = True
        if self.model.continuous:
            # Clipped as `Actions.decode` does: np.clip takes longer, and NaN becomes a bound.
            actions = np.fmin(np.fmax(actions, self.bounds[0]), self.bounds[1]).astype(np.float32, copy=False)
        next_obs, reward, terminated = self._advance(actions.reshape(-1))
        self.obs = next_obs
        self.returns += reward
        rewards = np.empty(self.shape, np.float32)
        rewards.reshape(-1)[:] = reward
        self.clock += 1
        tick()
        if self.clock < self.first_limit:
            truncated, ended = np.zeros(self.size, np.bool_), terminated
        else:
            truncated = self.clock - self.started >= self.limit
            ended = terminated | truncated
        if len(indices := ended.nonzero()[0]):
            self.obs = next_obs.copy()
            self._finished.append((indices, self.returns[indices], self.clock - self.started[indices]))
            self._next_episode(indices)
        return StepResult(next_obs, rewards, terminated.reshape(self.shape), truncated.reshape(self.shape))

    def _advance(self, actions: Array) -> tuple[NDArray[np.float32], Array, NDArray[np.bool_]]:
        """Step the states; return observations (P, N, D), rewards and terminations."""
        state, reward, terminated = self.model.step(np, tuple(self.state.astype(self.model.dtype)), actions)
        self.state = np.stack(state).astype(np.float64)
        return self._observe(), reward, terminated

    def resume(self, obs: Array, elapsed: Array, ended: Array, returns: Array, lengths: Array) -> None:
        self.obs = obs
        self.clock += len(ended)
        self.started = self.clock - elapsed
        self.first_limit = int(self.started.min()) + self.limit
        when, places = ended.reshape(-1, self.size).nonzero()
        if len(places):
            returns, lengths = (x.reshape(-1, self.size)[when, places] for x in (returns, lengths))
            self._finished.append((places, returns, lengths))

    def play_on_device(self, sample: Sample, noise: Tensor) -> DeviceRollouts | None:
        if self.watched:
            return None
        rollouts = self.on_device
        if rollouts is None or rollouts.noise.shape != noise.shape or rollouts.sample != sample:
            bounds = (float(self.bounds[0]), float(self.bounds[1])) if self.model.continuous else None
            rollouts = DeviceRollouts(self.model, sample, noise, self.obs_shape[0], self.keys, self.limit, bounds)
            self.on_device = rollouts
        running = Running(self.state, self.episode, self.clock - self.started, self.returns)
        state, episode, elapsed, returns = rollouts.play(running, noise)
        self.state, self.episode, self.returns = state, episode, returns
        ends = (x.cpu().numpy() for x in (rollouts.ended, rollouts.returns, rollouts.lengths))
        self.resume(rollouts.obs[:, -1].cpu().numpy(), elapsed, *ends)
        return rollouts

    def abandon(self, mask: Array) -> None:
        if len(indices := mask.reshape(-1).nonzero()[0]):
            self.obs = self.obs.copy()  # the learner may hold the old one
            self._next_episode(indices)

    def _next_episode(self, ended: NDArray[np.int64]) -> None:
        """Start the next episode of these environments."""
        self.returns[ended] = 0
        self.started[ended] = self.clock
        if self.clock >= self.first_limit:
            self.first_limit = int(self.started.min()) + self.limit
        episode = self.episode[ended] + 1
        self.episode[ended] = episode
        block, in_block = np.divmod(episode, BLOCK)
        if len(drawn := ended[block != self.block[ended]]):
            self._draw_starts(drawn)
        self.state[:, ended] = self.starts[:, ended, in_block]
        self.obs.reshape(self.size, -1)[ended] = self.first_obs[ended, in_block]

    def _draw_starts(self, indices: NDArray[np.int64]) -> None:
        """Draw the initial states of these environments' blocks of episodes."""
        count = len(self.model.start)
        self.block[indices] = self.episode[indices] // BLOCK
        begin = self.block[indices] * (BLOCK * count)
        counters = begin[:, None] + np.arange(BLOCK * count)
        draws = streams.uniform(self.keys[indices, None], counters).reshape(len(indices), BLOCK, count)
        for component, (low, high) in enumerate(self.model.start):
            self.starts[component, indices] = low + (high - low) * draws[:, :, component]
        drawn = self.model.observe(np, tuple(self.starts[:, indices]))
        self.first_obs[indices] = np.stack(drawn, axis=-1)

    def _observe(self) -> NDArray[np.float32]:
        """Return the observations, (P, N, D)."""
        obs = np.empty((self.size, *self.obs_shape), np.float32)
        for column, part in enumerate(self.model.observe(np, tuple(self.state))):
            obs[:, column] = part
        return obs.reshape(*self.shape, -1)

    def member_state(self, i: int) -> Tree:
        rows = self._rows(i)
        return self._head(i) | {
            "state": to_tensor(self.state[:, rows].astype(self.model.dtype)),
            "episode": to_tensor(self.episode[rows]),
            "elapsed": to_tensor(self.clock - self.started[rows]),
            "returns": to_tensor(self.returns[rows]),
        }

    def load_member(self, i: int, tree: Tree) -> None:
        rows = self._rows(i)
        self._load_head(i, tree)
        self.state[:, rows] = tree["state"].numpy()
        self.episode[rows] = tree["episode"].numpy()
        self.started[rows] = self.clock - tree["elapsed"].numpy()
        self.returns[rows] = tree["returns"].numpy()
        self.first_limit = int(self.started.min()) + self.limit
        self._draw_starts(np.arange(rows.start, rows.stop))
        self.obs = self._observe()


class CompiledClassicEnvs(ClassicEnvs):
    """`ClassicEnvs` whose equations kernels compute, with the same bits."""

    def __init__(self, run: ModuleType, *form: Any) -> None:
        """Create the environments; `run` are the kernels."""
        self.run, self.trig = run, np.array(run.cosine_and_sine(), np.uint64)  # addresses of NumPy's functions
        super().__init__(*form)

    def _advance(self, actions: Array) -> tuple[NDArray[np.float32], Array, NDArray[np.bool_]]:
        obs, rewards = np.empty((self.size, *self.obs_shape), np.float32), np.empty(self.size)
        terminated = np.empty(self.size, np.bool_)
        choices, numbers = (NO_CHOICES, actions) if self.model.continuous else (actions.astype(np.int64), NO_NUMBERS)
        self.run.step(self.model.number, self.trig, self.state, choices, numbers, obs, rewards, terminated)
        return obs.reshape(*self.shape, -1), rewards, terminated

    def playable(self) -> tuple[EnvModel, RunningEpisodes] | None:
        if self.watched:
            return None
        low, high = np.array(self.model.start).T
        ranges = np.ascontiguousarray(np.stack([low, high - low], 1))
        model = EnvModel(self.model.number, self.limit, self.trig, self.keys, ranges, self.bounds)
        return model, RunningEpisodes(self.state, self.episode, self.returns, self.clock - self.started)


def classic_envs(*form: Any) -> ClassicEnvs:
    """Return `ClassicEnvs`, computed by kernels where there are any.

    NumPy's sine and cosine must have addresses, too. The arguments are those of the class.
    """
    run = kernels()
    return ClassicEnvs(*form) if run is None or run.cosine_and_sine() is None else CompiledClassicEnvs(run, *form)
