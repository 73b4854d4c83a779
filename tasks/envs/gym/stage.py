"""Environments in a row, as ``GymEnvs`` uses them: begun, stepped, saved; here in this very process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base import Array
from ..encode import Observations
from ..spec import EnvSpec
from . import snapshot
from .make import Env, make_env

Options = Mapping[str, Any] | None  # what an environment's reset takes besides a seed


class Shown(NamedTuple):
    """What M environments showed after a step, (M, ...)."""

    obs: Array
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int, encoder: Observations) -> Shown:
        """Room for a step of so many environments."""
        obs = np.zeros((count, *encoder.shape), encoder.dtype)
        return cls(obs, np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_))

    def copy(self) -> Shown:
        """Arrays of its own."""
        return Shown(self.obs.copy(), self.reward.copy(), self.terminated.copy(), self.truncated.copy())


class Stage(Protocol):
    """M environments, each at a place of its own."""

    def begin(self, places: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        """Begins an episode at each place, in a new environment if ``fresh``; the first observations, (len, ...)."""

    def step(self, actions: Array) -> Shown:
        """One step everywhere; what is returned is the caller's."""

    def replay(self, places: Sequence[int], actions: Sequence[Array]) -> list[Array | None]:
        """Steps through recorded actions (T, ...) of each place; the last observation, None if there are no actions."""

    def take(self, places: Sequence[int]) -> list[Array]:
        """The simulators' states."""

    def put(self, places: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        """Puts simulators' states into episodes that just began, so many steps into them."""

    def close(self) -> None:
        """Frees what the environments hold; twice is fine."""


class Here:
    """A stage in this process."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self.spec = spec
        self.envs: list[Env] = [make_env(spec) for _ in range(count)]
        self.used = [False] * count
        self.encoder = Observations(self.envs[0].observation_space, spec.id)

    def begin(self, places: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        first = np.zeros((len(places), *self.encoder.shape), self.encoder.dtype)
        for place, seed, chosen, out in zip(places, seeds, options, first, strict=True):
            if fresh and self.used[place]:
                self.envs[place].close()
                self.envs[place] = make_env(self.spec)
            self.used[place] = True
            obs, _ = self.envs[place].reset(seed=seed, **({} if chosen is None else {"options": dict(chosen)}))
            self.encoder.write(obs, out)
        return first

    def step(self, actions: Array) -> Shown:
        shown = Shown.empty(len(self.envs), self.encoder)
        self.step_into(actions, shown)
        return shown

    def step_into(self, actions: Array, shown: Shown) -> None:
        """One step everywhere; ``shown.obs`` must be zeros."""
        next_obs, reward, terminated, truncated = shown
        write = self.encoder.write
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward[i], terminated[i], truncated[i], _ = env.step(action)
            write(obs, next_obs[i])

    def replay(self, places: Sequence[int], actions: Sequence[Array]) -> list[Array | None]:
        return [self._replay(place, each) for place, each in zip(places, actions, strict=True)]

    def _replay(self, place: int, actions: Array) -> Array | None:
        last = None
        for action in actions:
            obs, _, terminated, truncated, _ = self.envs[place].step(action)
            last = obs
            if terminated or truncated:
                break
        if last is None:
            return None
        out = np.zeros(self.encoder.shape, self.encoder.dtype)
        self.encoder.write(last, out)
        return out

    def take(self, places: Sequence[int]) -> list[Array]:
        return [snapshot.take(self.envs[place]) for place in places]

    def put(self, places: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        for place, state, steps in zip(places, states, elapsed, strict=True):
            snapshot.put(self.envs[place], state, steps)

    def close(self) -> None:
        for env in self.envs:
            env.close()
        self.envs = []
