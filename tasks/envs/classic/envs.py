"""Classic control, vectorised: all environments of all members on one flat axis of numpy arrays.

One step costs about thirty numpy calls however many environments there are, and nothing else unless an episode ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs import classic_control
from numpy.typing import NDArray

from ...errors import StateMismatch
from ...rng import streams
from ..base import Array, Envs, Step, Tree, to_tensor
from ..encode import Actions
from ..spec import EnvSpec
from .dynamics import MODELS

BLOCK = 16  # episodes whose first states are drawn at once


def is_classic(spec: EnvSpec) -> bool:
    """Whether the equations of this environment are known here."""
    return spec.id in MODELS and not spec.kwargs and not spec.wrappers and not spec.parameters


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
        self.obs_shape = self.obs_space.shape or ()
        self.actions = Actions(self.action_space, spec.id)
        self.limit = spec.max_episode_steps or self.model.limit
        self.shape = (self.num_members, num_envs)
        self.keys = np.array([streams.key(seed, purpose, n) for seed in seeds for n in range(num_envs)], np.uint64)
        # The first states of BLOCK episodes to come, (components, M, BLOCK), and their observations, (M, BLOCK, D).
        self.starts = np.empty((len(self.model.start), self.size, BLOCK), self.model.dtype)
        self.first_obs = np.empty((self.size, BLOCK, *self.obs_shape), np.float32)
        self.checked = False
        self.reset()

    def reset(self) -> None:
        """Begins again at episode 0, as if newly made; the tallies are emptied."""
        self._clear_episodes()
        self.episode = np.zeros(self.size, np.int64)
        self.returns = np.zeros(self.size)
        self.clock = 0  # steps since the reset
        self.begun = np.zeros(self.size, np.int64)  # the clock when the running episode began
        self.first_limit = self.limit  # no running episode reaches its limit before the clock is here
        self._draw_starts(np.arange(self.size))
        self.state = tuple(component[:, 0].copy() for component in self.starts)
        self.obs = self._observe(self.state)

    def step(self, actions: Array) -> Step:
        """One step everywhere, see Envs; the shape of the actions is checked at the first step only."""
        if not self.checked:
            self.actions.check(actions, self.shape)
            self.checked = True
        if self.model.continuous:
            actions = self.actions.decode(actions)
        self.state, reward, terminated = self.model.step(np, self.state, actions.reshape(-1))
        self.returns += reward
        next_obs = self.obs = self._observe(self.state)
        rewards = np.empty(self.shape, np.float32)
        rewards.reshape(-1)[:] = reward
        self.clock += 1
        if self.clock < self.first_limit:
            truncated, ended = np.zeros(self.size, np.bool_), terminated
        else:
            truncated = self.clock - self.begun >= self.limit
            ended = terminated | truncated
        if len(places := ended.nonzero()[0]):
            self.obs = next_obs.copy()
            self._finished.append((places, self.returns[places], self.clock - self.begun[places]))
            self._restart(places)
        return Step(next_obs, rewards, terminated.reshape(self.shape), truncated.reshape(self.shape))

    def abandon(self, where: Array) -> None:
        """Begins the next episode where (P, N) says so; the one that was running is not tallied."""
        if len(places := where.reshape(-1).nonzero()[0]):
            self.obs = self.obs.copy()  # the learner may hold the old one
            self._restart(places)

    def _restart(self, ended: NDArray[np.int64]) -> None:
        """Begins the next episode of those that ended."""
        self.returns[ended] = 0
        self.begun[ended] = self.clock
        if self.clock >= self.first_limit:
            self.first_limit = int(self.begun.min()) + self.limit
        episode = self.episode[ended] + 1
        self.episode[ended] = episode
        place = episode % BLOCK
        if not place.all():
            self._draw_starts(ended[place == 0])
        for component, start in zip(self.state, self.starts[:, ended, place], strict=True):
            component[ended] = start
        self.obs.reshape(self.size, -1)[ended] = self.first_obs[ended, place]

    def _draw_starts(self, places: NDArray[np.int64]) -> None:
        """First states for the block of episodes in which these environments are."""
        count = len(self.model.start)
        begin = self.episode[places] // BLOCK * (BLOCK * count)
        counters = begin[:, None] + np.arange(BLOCK * count)
        draws = streams.uniform(self.keys[places, None], counters).reshape(len(places), BLOCK, count)
        for component, (low, high) in enumerate(self.model.start):
            self.starts[component, places] = low + (high - low) * draws[:, :, component]
        drawn = self.model.observe(np, tuple(self.starts[:, places]))
        self.first_obs[places] = np.stack(drawn, axis=-1)

    def _observe(self, state: tuple[Any, ...]) -> NDArray[np.float32]:
        """The observations, (P, N, D)."""
        obs = np.empty((self.size, *self.obs_shape), np.float32)
        for column, part in enumerate(self.model.observe(np, state)):
            obs[:, column] = part
        return obs.reshape(*self.shape, -1)

    def member_state(self, i: int) -> Tree:
        """All that member i's future depends on; its observations follow from it."""
        rows = self._rows(i)
        return self._head(i) | {
            "state": to_tensor(np.stack([component[rows] for component in self.state])),
            "episode": to_tensor(self.episode[rows]),
            "elapsed": to_tensor(self.clock - self.begun[rows]),
            "returns": to_tensor(self.returns[rows]),
        }

    def load_member(self, i: int, tree: Tree, *, strict: bool = True) -> None:
        """Puts a member's state into place i."""
        rows = self._rows(i)
        self._check_head(tree)
        if tree["state"].shape != (len(self.state), self.num_envs):
            raise StateMismatch(
                f"{self.spec.id}: a state of {tree['state'].shape[1]} environments does not fit {self.num_envs}"
            )
        self._load_head(i, tree)
        for component, saved in zip(self.state, tree["state"].numpy(), strict=True):
            component[rows] = saved
        self.episode[rows] = tree["episode"].numpy()
        self.begun[rows] = self.clock - tree["elapsed"].numpy()
        self.returns[rows] = tree["returns"].numpy()
        self.first_limit = int(self.begun.min()) + self.limit
        self._draw_starts(np.arange(rows.start, rows.stop))
        self.obs = self._observe(self.state)
