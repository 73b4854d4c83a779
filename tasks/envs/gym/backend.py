"""The protocol of backends, and the backend that steps in this process.

A backend has its environments on one flat axis.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from ...errors import EnvironmentFailed
from ...runtime.progress import tick
from ..base import info
from ..base.curriculum import KWARGS
from ..base.encode import Observations
from ..base.envs import Array
from ..base.spec import EnvSpec
from . import snapshot
from .make import Env, close_env, make_drawn, make_env, of_reset

Options = Mapping[str, Any] | None  # parameters of an episode


class FlatStep(NamedTuple):
    """The results of one step of M environments, (M, ...)."""

    obs: Array
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    info: NDArray[np.float64]  # (M, K), the entries that the spec reports, NaN where there is none

    @classmethod
    def empty(cls, count: int, encoder: Observations, spec: EnvSpec) -> FlatStep:
        """Return arrays of zeros for a step of `count` environments."""
        obs, info = np.zeros((count, *encoder.shape), encoder.dtype), np.zeros((count, len(spec.info)))
        return cls(obs, np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_), info)

    def copy(self) -> FlatStep:
        """Return a copy of all arrays."""
        obs, reward, terminated, truncated, info = self
        return FlatStep(obs.copy(), reward.copy(), terminated.copy(), truncated.copy(), info.copy())


class Backend(Protocol):
    """M environments, each at an index.

    Attributes:
        close: frees all resources; a second call is a no-op.
    """

    @property
    def close(self) -> Callable[[], object]: ...

    def begin(self, indices: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        """Start an episode at each index, and return the first observations.

        Args:
            indices: the environments.
            seeds: seeds of their resets.
            options: parameters of their episodes.
            fresh: whether to create new environments.
        """

    def step(self, actions: Array, playing: NDArray[np.bool_]) -> FlatStep:
        """Step the environments that are playing, (M,); the caller owns the result.

        The others have reward 0 and end nothing; their observations have no meaning.
        """

    def replay(self, indices: Sequence[int], actions: Sequence[Array]) -> list[Array]:
        """Step through recorded actions (T, ...) of each index, at least one.

        Returns:
            The last observations.
        """

    def take(self, indices: Sequence[int]) -> list[Array]:
        """Return the simulators' states."""

    def put(self, indices: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        """Load simulators' states into new episodes, `elapsed` steps into them."""


class InProcess:
    """A backend that steps in this process."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self.spec = spec
        self.envs: list[Env] = []
        # The last net: whoever makes a backend closes it, but an exception may keep it from that.
        self.close = weakref.finalize(self, _close, self.envs, spec, os.getpid())
        try:
            for _ in range(count):
                self.envs.append(make_env(spec))
        except BaseException:
            self.close()
            raise
        self.used = [False] * count
        self.drawn = any(name.startswith(KWARGS) for name in spec.parameters)  # each episode needs a new environment
        self.encoder = Observations(self.envs[0].observation_space, spec.id)

    def begin(self, indices: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        first = np.zeros((len(indices), *self.encoder.shape), self.encoder.dtype)
        for i, seed, chosen, out in zip(indices, seeds, options, first, strict=True):
            if self.drawn or (fresh and self.used[i]):
                old, self.envs[i] = self.envs[i], gym.Env()  # closed first: there may be one instance at most
                close_env(old, self.spec)
                self.envs[i] = make_drawn(self.spec, chosen or {}, old) if self.drawn else make_env(self.spec)
            self.used[i] = True
            told = of_reset(chosen)
            obs, _ = self.envs[i].reset(seed=seed, **({} if told is None else {"options": told}))
            self.encoder.write(obs, out)
            tick()
        return first

    def step(self, actions: Array, playing: NDArray[np.bool_]) -> FlatStep:
        result = FlatStep.empty(len(self.envs), self.encoder, self.spec)
        self.step_into(actions, playing, result)
        return result

    def step_into(self, actions: Array, playing: NDArray[np.bool_], result: FlatStep) -> None:
        """Step as `step` does, into `result`, whose obs must be zeros."""
        next_obs, reward, terminated, truncated, entries = result
        write, reported = self.encoder.write, tuple(self.spec.info)
        # Environments get copies, which they may keep or change; those that the caller records stay as they are.
        for i, (env, action) in compress(enumerate(zip(self.envs, actions.copy(), strict=True)), playing):
            obs, reward[i], terminated[i], truncated[i], said = env.step(action)
            write(obs, next_obs[i])
            tick()
            if reported:
                info.write(said, reported, entries[i], self.spec.id)

    def replay(self, indices: Sequence[int], actions: Sequence[Array]) -> list[Array]:
        last = np.zeros((len(indices), *self.encoder.shape), self.encoder.dtype)
        for i, recorded, out in zip(indices, actions, last, strict=True):
            for action in recorded.copy():
                obs, _, terminated, truncated, _ = self.envs[i].step(action)
                tick()
                if terminated or truncated:
                    break
            self.encoder.write(obs, out)
        return [*last]

    def take(self, indices: Sequence[int]) -> list[Array]:
        return [snapshot.take(self.envs[i]) for i in indices]

    def put(self, indices: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        for i, state, steps in zip(indices, states, elapsed, strict=True):
            snapshot.put(self.envs[i], state, steps)


def _close(envs: list[Env], spec: EnvSpec, owner: int) -> None:
    """Close all environments, except in a fork; warn of those that fail."""
    while envs and os.getpid() == owner:
        try:
            close_env(envs.pop(), spec)
        except EnvironmentFailed as error:  # nothing depends on it any more
            warnings.warn(str(error), stacklevel=2)
