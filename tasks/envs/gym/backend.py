"""The protocol of backends, and the backend that steps in this process.

A backend has its environments on one flat axis.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import compress
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from ...runtime.finalizers import Finalizer, finalize_collected
from ...runtime.progress import tick
from ..base import info
from ..base.arrays import ENDS, NUMBERS
from ..base.envs import Array
from ..base.failures import close_env, close_or_warn
from ..base.observations import Observations
from ..base.spec import EnvSpec
from . import snapshot
from .chance import generator_marks, watched_generators
from .make import Env, action_space_of, begin_episode, check_actions, make_env, make_for_episode, of_reset
from .rewards import check_step
from .surroundings import UNGUARDED, Guards

P = ParamSpec("P")
R = TypeVar("R")
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


class Outcome(NamedTuple):
    """Where an episode led: its last observation, return and length."""

    obs: Array
    total: float
    steps: int

    def equals(self, other: Outcome) -> bool:
        """Return whether all bits are equal."""
        return all(np.asarray(one).tobytes() == np.asarray(two).tobytes() for one, two in zip(self, other, strict=True))


class Backend(Protocol):
    """M environments, each at an index.

    Attributes:
        elsewhere: why its processes play other episodes than this one; "" if they do not.
        close: frees all resources; a second call is a no-op.
    """

    elsewhere: str

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

    def replay(self, indices: Sequence[int], actions: Sequence[Array]) -> list[Outcome]:
        """Step through recorded actions (T, ...) of each index, at least one."""

    def play_again(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> Outcome:
        """Play an episode of this environment again, in another one.

        If `fresh`, that is a new one each time.
        """

    def marks(self) -> Mapping[str, str]:
        """Return digests of the global generators' states, in the processes that step."""

    def draws(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> list[str]:
        """Return the global generators that an episode, played again, draws from."""

    def take(self, indices: Sequence[int]) -> list[Array]:
        """Return the simulators' states."""

    def put(self, indices: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        """Load simulators' states into new episodes, `elapsed` steps into them."""


def guarded(method: Callable[Concatenate[InProcess, P], R]) -> Callable[Concatenate[InProcess, P], R]:
    """Guard the environments' code that a method runs."""

    @wraps(method)
    def with_guard(self: InProcess, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.guards.always:
            return method(self, *arguments, **named)

    return with_guard


class InProcess:
    """A backend that steps in this process."""

    elsewhere = ""

    def __init__(self, spec: EnvSpec, count: int, generators: Sequence[str] = (), guards: Guards = UNGUARDED) -> None:
        """Create the environments.

        Args:
            spec: spec of the environments.
            count: M.
            generators: global generators that each environment has to itself, see `chance`.
            guards: guards of the environments' code, see `surroundings`.
        """
        finalize_collected()  # frees the resources of earlier environments
        self.spec, self.generators, self.guards = spec, generators, guards
        self.envs: list[Env] = []
        self.spares: list[Env] = []  # at most one, which plays episodes again
        # The last net: whoever makes a backend closes it, but an exception may keep it from that.
        self.close = Finalizer(self, _close, [self.envs, self.spares], spec, guards, os.getpid())
        try:
            with guards.always:
                for _ in range(count):
                    self.envs.append(make_env(spec, generators))
        except BaseException:
            self.close()
            raise
        self.used = [False] * count
        self.drawn = spec.draws_arguments  # each episode needs a new environment
        self.encoder = Observations(self.envs[0].observation_space, spec.id)
        self.actions = action_space_of(self.envs[0], spec)

    @guarded
    def begin(self, indices: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        first = np.zeros((len(indices), *self.encoder.shape), self.encoder.dtype)
        for i, seed, chosen, out in zip(indices, seeds, options, first, strict=True):
            if self.drawn or (fresh and self.used[i]):
                old, self.envs[i] = self.envs[i], gym.Env()  # closed first: there may be one instance at most
                close_env(old, self.spec)
                self.envs[i] = self._new(chosen, old)
            self.used[i] = True
            obs = begin_episode(self.envs[i], self.spec, seed, of_reset(chosen), self.actions)
            self.encoder.check(obs, "reset")
            self.encoder.write(obs, out, "reset")
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
        with self.guards.stepping:
            for i, (env, action) in compress(enumerate(zip(self.envs, actions.copy(), strict=True)), playing):
                try:
                    outcome = env.step(action)
                except Exception:
                    check_actions(env, self.spec, self.actions)
                    raise
                try:
                    obs, reward[i], terminated[i], truncated[i], step_info = outcome
                    if not (type(outcome[1]) in NUMBERS and type(outcome[2]) in ENDS and type(outcome[3]) in ENDS):
                        check_step(outcome, self.spec)
                except (TypeError, ValueError, LookupError, OverflowError):
                    check_step(outcome, self.spec)
                    raise
                write(obs, next_obs[i])
                tick()
                if reported:
                    info.write(step_info, reported, entries[i], self.spec.id)

    @guarded
    def replay(self, indices: Sequence[int], actions: Sequence[Array]) -> list[Outcome]:
        return [self._play(self.envs[i], recorded) for i, recorded in zip(indices, actions, strict=True)]

    @guarded
    def play_again(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> Outcome:
        if not self.spares or self.drawn or fresh:
            while self.spares:
                close_env(self.spares.pop(), self.spec)
            self.spares.append(self._new(options, self.envs[index]))
        [env] = self.spares
        begin_episode(env, self.spec, seed, of_reset(options), self.actions)
        return self._play(env, actions)

    def marks(self) -> Mapping[str, str]:
        return generator_marks()

    def draws(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> list[str]:
        used: set[str] = set()
        with watched_generators(used):
            self.play_again(index, seed, options, actions, fresh)
        return sorted(used)

    def _play(self, env: Env, actions: Array) -> Outcome:
        """Step through actions (T, ...), at least one, until the episode ends."""
        total, last = 0.0, np.zeros(self.encoder.shape, self.encoder.dtype)
        for steps, action in enumerate(actions.copy(), 1):  # noqa: B007 - the last one is returned
            obs, reward, terminated, truncated, _ = env.step(action)
            tick()
            total += float(reward)
            if terminated or truncated:
                break
        self.encoder.write(obs, last)
        return Outcome(last, total, steps)

    @guarded
    def take(self, indices: Sequence[int]) -> list[Array]:
        return [snapshot.take(self.envs[i]) for i in indices]

    @guarded
    def put(self, indices: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        for i, state, steps in zip(indices, states, elapsed, strict=True):
            snapshot.put(self.envs[i], state, steps)

    def _new(self, options: Options, like: Env) -> Env:
        return make_for_episode(self.spec, self.generators, options or {}, like)


def _close(lists: Sequence[list[Env]], spec: EnvSpec, guards: Guards, owner: int) -> None:
    """Close all environments, except in a fork; warn of those that fail."""
    with guards.always:
        for envs in lists:
            while envs and os.getpid() == owner:
                close_or_warn(envs.pop(), spec)
