"""Classic control, vectorised: all environments of all members on one flat axis of numpy arrays.

One step costs about thirty numpy calls however many environments there are, and nothing else unless an episode ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs import classic_control
from numpy.typing import NDArray

from .. import streams
from ..errors import StateMismatch
from .base import Array, Envs, Episodes, Step, Tree, to_tensor
from .dynamics import MODELS
from .spec import EnvSpec


def is_classic(spec: EnvSpec) -> bool:
    """Whether the equations of this environment are known here."""
    return spec.id in MODELS and not spec.kwargs and not spec.wrappers


class ClassicEnvs(Envs):
    """Environments whose whole state is known: a snapshot is exact."""

    mode = "snapshot"
    exact = True
    why = "its state is a few numbers"
    obs_kind = "vector"

    def __init__(self, spec: EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str) -> None:
        super().__init__(spec, seeds, num_envs, purpose)
        self.model = MODELS[spec.id]
        scalar = getattr(classic_control, self.model.scalar)()
        self.obs_space, self.action_space = scalar.observation_space, scalar.action_space
        self.obs_shape = self.obs_space.shape
        self.limit = spec.max_episode_steps or self.model.limit
        self.shape = (self.num_members, num_envs)
        self.low, self.span = (np.array(x) for x in zip(*((low, high - low) for low, high in self.model.start), strict=True))
        self.components = np.arange(len(self.low), dtype=np.uint64)
        self.keys = np.array([streams.key(seed, purpose, n) for seed in seeds for n in range(num_envs)], np.uint64)
        self.checked = False
        self.reset()

    def reset(self) -> None:
        """Begins again at episode 0, as if newly made; the tallies are emptied."""
        self.episode = np.zeros(self.size, np.int64)
        self.returns = np.zeros(self.size)
        self.clock = 0  # steps since the reset
        self.begun = np.zeros(self.size, np.int64)  # the clock when the running episode began
        self.first_limit = self.limit  # the clock at which the first of the running episodes is truncated
        self.episodes = Episodes.none(self.num_members)
        self.state = tuple(self._start(np.arange(self.size)))
        self.obs = self._observe(self.state)

    def step(self, actions: Array) -> Step:
        """One step everywhere, see Envs; the shape of the actions is checked at the first step only."""
        if not self.checked:
            self._check(actions)
        self.state, reward, terminated = self.model.step(np, self.state, actions.reshape(self.size))
        self.returns += reward
        next_obs = self.obs = self._observe(self.state)
        rewards = np.empty(self.size, np.float32)
        rewards[:] = reward
        self.clock += 1
        if self.clock < self.first_limit:
            truncated, ended = np.zeros(self.size, np.bool_), terminated
        else:
            truncated = self.clock - self.begun >= self.limit
            ended = terminated | truncated
        if np.count_nonzero(ended):
            self.obs = next_obs.copy()
            self._restart(np.flatnonzero(ended))
        shape = self.shape
        return Step(next_obs, rewards.reshape(shape), terminated.reshape(shape), truncated.reshape(shape))

    def _restart(self, ended: NDArray[np.int64]) -> None:
        """Begins the next episode of those that ended."""
        self._tally(ended, self.returns[ended], self.clock - self.begun[ended])
        self.returns[ended] = 0
        self.episode[ended] += 1
        self.begun[ended] = self.clock
        self.first_limit = int(self.begun.min()) + self.limit
        start = self._start(ended)
        for component, first in zip(self.state, start, strict=True):
            component[ended] = first
        self.obs.reshape(self.size, -1)[ended] = self._observe(tuple(start)).reshape(len(ended), -1)

    def _start(self, places: NDArray[np.int64]) -> list[Array]:
        """First states of the current episodes at these places, one (len(places),) array per component."""
        counters = self.episode[places, None].astype(np.uint64) * np.uint64(len(self.components)) + self.components
        draws = self.low + self.span * streams.uniform(self.keys[places, None], counters)
        return [np.ascontiguousarray(column) for column in draws.astype(self.model.dtype).T]

    def _observe(self, state: tuple[Any, ...]) -> NDArray[np.float32]:
        """The observations, (P, N, D), or (len, D) for a part of the flat axis."""
        parts = self.model.observe(np, state)
        obs = np.empty((len(state[0]), len(parts)), np.float32)
        for column, part in enumerate(parts):
            obs[:, column] = part
        return obs.reshape(*self.shape, -1) if len(obs) == self.size else obs

    def _check(self, actions: Array) -> None:
        expected = self.shape + self.action_space.shape
        kind = "i" if isinstance(self.action_space, gym.spaces.Discrete) else "f"
        if actions.shape != expected or actions.dtype.kind != kind:
            raise ValueError(
                f"{self.spec.id}: actions must be {'int64' if kind == 'i' else 'float32'} of shape {expected}, "
                f"but got {actions.dtype} of shape {actions.shape}"
            )
        self.checked = True

    def member_state(self, i: int) -> Tree:
        """All that member i's future depends on; its observations follow from it."""
        rows = self._rows(i)
        return self._head(i) | {
            "state": to_tensor(np.stack([component[rows] for component in self.state])),
            "episode": to_tensor(self.episode[rows]),
            "elapsed": to_tensor(self.clock - self.begun[rows]),
            "returns": to_tensor(self.returns[rows]),
        }

    def load_member(self, i: int, tree: Tree) -> None:
        """Puts a member's state into place i."""
        rows = self._rows(i)
        self._check_head(tree)
        if tree["state"].shape != (len(self.state), self.num_envs):
            raise StateMismatch(
                f"{self.spec.id}: a state of {tree['state'].shape[1]} environments cannot be loaded into {self.num_envs}"
            )
        self._load_head(i, tree)
        for component, saved in zip(self.state, tree["state"].numpy(), strict=True):
            component[rows] = saved
        self.episode[rows] = tree["episode"].numpy()
        self.begun[rows] = self.clock - tree["elapsed"].numpy()
        self.returns[rows] = tree["returns"].numpy()
        self.first_limit = int(self.begun.min()) + self.limit
        self.obs = self._observe(self.state)
