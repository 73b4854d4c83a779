"""Probes: short looks at environments, with random actions and untrained policies.

It ends after a number of steps, so all that it finds follows from the seed; only environments in which these take
longer than SECONDS are left earlier, and `slow` says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from .envs import Envs, allows_one, make_envs, spaces_of
from .envs.base.masks import mask_in
from .errors import EnvironmentFailed, Stopped, TaskError
from .evaluation import acting, evaluation_keys, one_thread, played_steps
from .experience.exploration import UniformActions
from .identity import TaskIdentity
from .rng import streams
from .runtime.progress import at_work

STEPS = 2_000  # half of them with random actions
MORE_STEPS = 10_000  # taken instead where episodes are long
ENOUGH = 3  # complete episodes of random actions, and untrained policies with one
EPISODES = 20  # at most, of random actions, and of all untrained policies together
POLICIES = 5  # at most; each has initial weights of its own
SECONDS = 30.0  # an environment that needs longer is too slow to be probed
FAILURES = 3  # of the environment's code, after which nothing more is played
MASKS, GOALS = "action_mask", "desired_goal"  # names in observations
Act = Callable[[NDArray[Any]], NDArray[Any]]


class TooSlow(Exception):
    """An environment needs more time than a probe has."""


@one_thread()
def probe(
    algorithm: type[Any], identity: TaskIdentity, steps: int | None = None, on_step: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Return what a task would find in its environment, as JSON.

    - `random`: returns of complete episodes with random actions; `untrained`: of each untrained policy, whose actions
      are greedy. `lengths` and `terminated`: of all these episodes, lengths, and how many were not truncated.
    - `rewards`, `observations`: see `_moments`, over the steps with random actions; None without such steps, and of
      images. `zero_rewards`: share of zeros among all rewards.
    - `restore`: how a state is restored. `masks`, `goals`: whether observations have them.
    - `actions`: kind of the action space.
    - `failures`: errors of the environment's code. `slow`: seconds of a step, if there is too little time; else None.

    Args:
        algorithm: class of the task.
        identity: its identity.
        steps: largest number of steps, of all environments together; None for STEPS, or MORE_STEPS where needed.
        on_step: function called at each step; it may raise to stop.

    Raises:
        UnsupportedSpace: the task does not act in an environment.
    """
    env = identity.env
    with at_work():
        played = _Probe(identity, STEPS if steps is None else steps, on_step).play(algorithm.learner)
        if steps is None and not played.is_enough:
            played = _Probe(identity, MORE_STEPS, on_step).play(algorithm.learner)
    space = spaces_of(env).observation
    names = list(space.spaces) if isinstance(space, gym.spaces.Dict) else []
    actions = type(spaces_of(env).action).__name__
    return {"actions": actions, "masks": MASKS in names, "goals": GOALS in names, **played.to_json()}


class _Probe:
    """Episodes of a probe, and what is known of them so far."""

    def __init__(self, identity: TaskIdentity, most: int, on_step: Callable[[], None]):
        self.identity, self.most, self.on_step, self.began = identity, most, on_step, time.monotonic()
        self.seconds, self.slow = 0.0, False
        self.steps = self.terminated = self.random_steps = 0
        self.returns: list[list[list[float]]] = []  # of random actions, and of untrained policies
        self.lengths: list[int] = []
        self.rewards: list[float] = []
        self.numbers: list[NDArray[np.float64]] = []  # observations before steps with random actions, (D,)
        self.failures: list[str] = []
        self.restore: dict[str, Any] | None = None

    def play(self, policy: type[Any]) -> _Probe:
        """Play all episodes; return self."""
        try:
            self.random()
            self.untrained(policy)
        except TooSlow:
            self.slow = True
        self.seconds = time.monotonic() - self.began
        return self

    @property
    def is_enough(self) -> bool:
        """True if there are enough complete episodes."""
        results = self.to_json()
        return self.slow or min(len(results["random"]), sum(map(bool, results["untrained"]))) >= ENOUGH

    def random(self) -> None:
        """Play episodes with random actions."""
        env, seed = self.identity.env, self.identity.seed
        envs = make_envs(env, [seed], 1, "probe", single_episodes=True)
        self.began = time.monotonic()  # without the self-test
        self.restore = {"mode": envs.mode, "exact": envs.exact, "reason": envs.reason}
        mask = mask_in(envs.obs_shape)
        draw = UniformActions(streams.keys([seed], "probe"), envs.action_space, EPISODES, env.id)

        def act(obs: NDArray[Any]) -> NDArray[Any]:
            if envs.obs_kind == "vector":
                self.numbers.append(envs.obs[0, 0].astype(np.float64))
            return draw(self.steps, None if mask is None else obs[..., mask] > 0.5)

        self._play(envs, lambda: act, EPISODES, self.most // 2)
        self.random_steps = self.steps

    def untrained(self, policy: type[Any]) -> None:
        """Play episodes with the policies with which trials begin."""
        identity, left = self.identity, self.most - self.most // 2
        several = policy.batched and not allows_one(identity.env)
        policies = max(1, min(POLICIES, left // max(self.lengths, default=left))) if several else 1
        values = {**identity.hyperparameters, **{name: 1 for name in ("num_envs",) if name in identity.hyperparameters}}
        made = acting(policy(identity.env, [identity.seed + n for n in range(policies)], [values] * policies))
        try:
            learner = made.particles or made
            envs = make_envs(identity.env, learner.seeds, 1, "probe", single_episodes=True)
            keys, episodes = partial(evaluation_keys, learner.members, seed=identity.seed), EPISODES // policies
            self._play(envs, lambda: learner.actor(episodes, True, keys), episodes, left)
        finally:
            made.close()

    def _play(self, envs: Envs, make_act: Callable[[], Act], episodes: int, most: int) -> None:
        """Play episodes one after another, within a number of steps."""
        returns: list[list[float]] = [[] for _ in range(envs.num_members)]
        self.returns.append(returns)
        end = self.steps + most
        try:
            for first in range(episodes):
                if self.steps >= end or len(self.failures) >= FAILURES:
                    return
                try:
                    self._episode(envs, first, make_act(), (envs.num_members, episodes), returns, end)
                except (MemoryError, TooSlow, Stopped):
                    raise
                except Exception as error:
                    if isinstance(error, TaskError) and not isinstance(error, EnvironmentFailed):
                        raise  # not of the environment's code
                    self.failures.append(f"{type(error).__name__}: {error}")
                    envs.close()
        finally:
            envs.close()

    def _episode(
        self, envs: Envs, first: int, act: Act, shape: tuple[int, int], returns: list[list[float]], end: int
    ) -> None:
        sums, length = np.zeros(shape[0]), 0
        for _, running, step in played_steps(envs, first, act, np.ones(shape, bool), lambda *seen: None):
            self.on_step()
            alive, length = running[:, first].copy(), length + 1
            self.steps += int(alive.sum())
            self.rewards += step.reward[alive, 0].tolist()
            sums += step.reward[:, 0] * alive
            for member in np.flatnonzero(alive & (step.terminated | step.truncated)[:, 0]).tolist():
                returns[member].append(float(sums[member]))
                self.lengths.append(length)
                self.terminated += bool(step.terminated[member, 0])
                running[member, first] = False
            if self.steps >= end:
                return
            if time.monotonic() - self.began > SECONDS:
                raise TooSlow

    def to_json(self) -> dict[str, Any]:
        """Return the figures in the form of `probe`."""
        rewards, random = np.array(self.rewards), self.random_steps
        return {
            "seed": self.identity.seed,
            "steps": self.steps,
            "slow": self.seconds / self.steps if self.slow else None,
            "random": self.returns[0][0] if self.returns else [],
            "untrained": [returns for of_kind in self.returns[1:] for returns in of_kind],
            "lengths": self.lengths,
            "terminated": self.terminated,
            "rewards": _moments(rewards[:random, None]),
            "zero_rewards": float((rewards == 0).mean()) if len(rewards) else None,
            "observations": _moments(np.array(self.numbers)) if self.numbers else None,
            "restore": self.restore,
            "failures": self.failures,
        }


def _moments(values: NDArray[np.float64]) -> dict[str, float | None] | None:
    """Return the scale and drift of columns (T, D).

    None for fewer than two rows. `low`, `high`: smallest and largest standard deviation. `mean`: largest absolute
    mean. `drift`: the largest difference of the mean of the second half of the rows from that of the first, in standard
    deviations.
    """
    if len(values) < 2:
        return None
    with np.errstate(all="ignore"):
        std, halves = values.std(0), np.array_split(values, 2)
        moved = np.abs(halves[1].mean(0) - halves[0].mean(0)) / np.where(std > 0, std, 1.0)
        moments = {"low": std.min(), "high": std.max(), "mean": np.abs(values.mean(0)).max(), "drift": moved.max()}
    return {name: float(value) if math.isfinite(value) else None for name, value in moments.items()}
