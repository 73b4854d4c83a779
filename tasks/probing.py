"""Probes: short looks at environments, with random actions and untrained policies.

A probe ends after a number of steps, so all that it finds follows from the seed; only environments in which these take
longer than SECONDS are left earlier, and `slow` says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from .base_learner import BaseLearner
from .envs import Envs, allows_one, make_envs, spaces_of, time_limit
from .envs.base.images import largest_pixel
from .envs.base.masks import mask_in
from .envs.base.spec import RAISED
from .errors import Diverged, EnvironmentFailed, Stopped, TaskError, class_and_text
from .evaluation.episodes import played_steps
from .evaluation.players import playing
from .evaluation.seeds import evaluation_keys
from .experience.exploration import UniformActions
from .identity import TaskIdentity
from .learner import Learner
from .rng import streams
from .runtime import EVALUATION_SEED
from .runtime.progress import at_work
from .runtime.threads import one_thread

STEPS = 2_000  # half of them with random actions
MORE_STEPS = 10_000  # taken instead where episodes are long
MOST_STEPS = 20_000  # taken instead where none has ended, and no time limit says that one will
ENOUGH = 3  # complete episodes of random actions, and untrained policies with one
EPISODES = 20  # at most, of random actions, and of each untrained policy
POLICIES = 8  # at most; each has initial weights of its own
SECONDS = 30.0  # an environment that needs longer, without the policies, is too slow to be probed
FAILURES = 3  # of the environment's code, after which nothing more is played
MASKS, GOALS = "action_mask", "desired_goal"  # names in observations
Act = Callable[[NDArray[Any]], NDArray[Any]]


class TooSlow(Exception):
    """An environment needs more time than a probe has."""


@one_thread()
def probe(
    algorithm: type[Any],
    identity: TaskIdentity,
    steps: int | None = None,
    on_step: Callable[[], None] = lambda: None,
    trials: Sequence[tuple[type[Any], TaskIdentity]] = (),
) -> dict[str, Any]:
    """Return what a task would find in its environment, as JSON.

    - `random`: returns of complete episodes with random actions; `untrained`: of each untrained policy, whose actions
      are greedy, in the episodes of evaluations. `lengths` and `terminated`: of all these, lengths, and how many were
      not truncated. `unfinished`: steps of the longest episode of each that was cut short, or 0.
    - `rewards`, `observations`: see `_moments`, over the steps with random actions; None without such steps, and of
      images. `largest_pixel`: the largest number of images in these steps, of 255. `zero_rewards`: share of zeros
      among all rewards; where behaviours learn, among those of all agents. `zero_sum`: whether these are not all zeros,
      but add up to 0 in every step.
    - `restore`: how a state is restored. `masks`, `goals`: whether observations have them.
    - `actions`: kind of the action space.
    - `failures`: errors of the environment's code. `raised`: episodes that ended by one, where `on_error` says so.
    - `slow`: seconds of a step, if there is too little time; else None.

    Args:
        algorithm: class of the task.
        identity: its identity.
        steps: largest number of steps, of all environments together; None for STEPS, or MORE_STEPS or MOST_STEPS
            where needed.
        on_step: function called at each step; it may raise to stop.
        trials: classes and identities of a study's first trials, whose initial policies are the untrained ones; empty
            for the task's own.

    Raises:
        UnsupportedSpace: the task does not act in an environment.
    """
    env, beginnings = identity.env, _distinct(trials or [(algorithm, identity)])
    with at_work():
        played = _Probe(algorithm, identity, STEPS if steps is None else steps, on_step).play(beginnings)
        if steps is None and not played.is_enough:
            played = _Probe(algorithm, identity, MORE_STEPS, on_step).play(beginnings)
            if not (played.lengths or played.slow or played.failures) and time_limit(env) is None:
                longer = _Probe(algorithm, identity, MOST_STEPS, on_step).play(beginnings)
                if longer.lengths or not longer.slow:  # else it knows less for sure
                    played = longer
    space = spaces_of(env).observation
    names = list(space.spaces) if isinstance(space, gym.spaces.Dict) else []
    actions = type(spaces_of(env).action).__name__
    return {"actions": actions, "masks": MASKS in names, "goals": GOALS in names, **played.to_json()}


def _distinct(trials: Sequence[tuple[type[Any], TaskIdentity]]) -> list[tuple[type[Any], TaskIdentity]]:
    """Return the trials whose untrained policies are others than those before."""
    policies = dict[tuple[str, str], tuple[type[Any], TaskIdentity]]()
    for algorithm, identity in trials:
        parts = {name: x for name, x in identity.structural.items() if name.startswith(("model.", "normalize_obs"))}
        policies.setdefault((identity.algorithm, repr(sorted(parts.items()))), (algorithm, identity))
    return [*policies.values()]


class _Player:
    """A policy, its environments, and returns of its members."""

    def __init__(self, envs: Envs, make_act: Callable[[], Act]):
        self.envs, self.make_act = envs, make_act
        self.returns: list[list[float]] = [[] for _ in range(envs.num_members)]


class _Probe:
    """Episodes of a probe, and what is known of them so far."""

    def __init__(self, algorithm: type[Any], identity: TaskIdentity, most: int, on_step: Callable[[], None]):
        self.learner: type[BaseLearner] = algorithm.learner
        self.identity, self.most, self.on_step, self.began = identity, most, on_step, time.monotonic()
        self.seconds, self.slow = 0.0, False
        self.steps = self.terminated = self.raised = self.random_steps = 0
        self.returns: list[list[list[float]]] = []  # of random actions, and of untrained policies
        self.lengths: list[int] = []
        self.unfinished: list[int] = []  # steps of episodes that were cut short, of random actions and of policies
        self.rewards: list[NDArray[np.float32]] = []  # of each step's agents, (A,)
        self.numbers: list[NDArray[np.float64]] = []  # observations before steps with random actions, (D,)
        self.largest_pixel: int | None = None  # of images before these steps
        self.failures: list[str] = []
        self.restore: dict[str, Any] | None = None

    def play(self, trials: Sequence[tuple[type[Any], TaskIdentity]]) -> _Probe:
        """Play all episodes; return self."""
        try:
            self.random()
            self.untrained(trials)
        except TooSlow:
            self.slow = True
        self.seconds = time.monotonic() - self.began
        return self

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Leave out the time that policies take, which may be compiled first."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.began += time.monotonic() - began

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
        draw = UniformActions(streams.keys([seed], "probe"), envs.action_space, 1, env.id)

        def act(obs: NDArray[Any]) -> NDArray[Any]:
            if envs.obs_kind == "vector":
                self.numbers.append(envs.obs[0, 0].astype(np.float64))
            else:
                self.largest_pixel = max(self.largest_pixel or 0, largest_pixel(envs.obs[0, 0], envs.obs_shape))
            return draw(self.steps, None if mask is None else obs[..., mask] > 0.5)

        with closing(envs):
            self._play([_Player(envs, lambda: act)], self.most // 2)
        self.random_steps = self.steps

    def untrained(self, trials: Sequence[tuple[type[Any], TaskIdentity]]) -> None:
        """Play episodes with the policies with which trials begin, in turns.

        Where trials have fewer different policies than there is time for, these have further seeds.
        """
        left = self.most - self.most // 2
        several = trials[0][0].learner.batched and not allows_one(self.identity.env)
        policies = max(1, min(POLICIES, left // max(self.lengths, default=left))) if several else 1
        players = list[_Player]()
        with ExitStack() as stack:
            for place in range(policies):
                repeat, index = divmod(place, len(trials))
                algorithm, identity = trials[index]
                seed, values = identity.seed + repeat, dict(identity.hyperparameters)
                values |= {name: 1 for name in ("num_envs",) if name in values}
                with self.untimed():
                    learner = playing(algorithm.learner(identity.env, [seed], [values]))
                    stack.callback(learner.close)
                    players.append(self._player(learner))
                stack.callback(players[-1].envs.close)
            self._play(players, left)

    def _player(self, learner: Learner) -> _Player:
        """Return a policy that plays the episodes which evaluate trials."""
        # A model of another library has no normalizer of this kind.
        normalizer = (learner.agent or learner).obs_normalizer if isinstance(learner, Learner) else None
        player = learner.particles or learner
        if normalizer is not None and self.numbers:  # a trial's own has seen as much after its first rollout
            normalizer.update(np.array([self.numbers] * learner.members))
        envs = make_envs(self.identity.env, [EVALUATION_SEED] * player.members, 1, "evaluation", single_episodes=True)
        return _Player(envs, lambda: player.actor(1, True, partial(evaluation_keys, player.members)))

    def _play(self, players: Sequence[_Player], most: int) -> None:
        """Play episodes of each player in turns, within a number of steps.

        So only the last one is cut short, and long episodes count like others.
        """
        self.returns += [player.returns for player in players]
        self.unfinished.append(0)
        end = self.steps + most
        for episode in range(EPISODES):
            for player in players:
                if self.steps >= end or len(self.failures) >= FAILURES:
                    return
                try:
                    self._episode(player, episode, end)
                except (MemoryError, TooSlow, Stopped):
                    raise
                except Exception as error:
                    if isinstance(error, TaskError) and not isinstance(error, EnvironmentFailed):
                        raise  # not of the environment's code
                    self.failures.append(class_and_text(error))
                    player.envs.close()

    def _episode(self, player: _Player, episode: int, end: int) -> None:
        envs, act = player.envs, player.make_act()
        rewards_of = self.learner.rewards_in(envs)
        sums, length, due = np.zeros(envs.num_members), 0, np.ones((envs.num_members, 1), bool)

        def untimed(obs: NDArray[Any]) -> NDArray[Any]:
            with self.untimed():
                return act(obs)

        for _, running, step in played_steps(envs, 0, untimed, due, lambda *arrays: None, episode):
            self.on_step()
            if envs.faults:
                raise Diverged(envs.faults.popitem()[1])
            alive, length = running[:, 0].copy(), length + 1
            self.steps += int(alive.sum())
            self.rewards += [*rewards_of(step)[alive, 0]]
            sums += step.reward[:, 0] * alive
            for member in np.flatnonzero(alive & (step.terminated | step.truncated)[:, 0]).tolist():
                player.returns[member].append(float(sums[member]))
                self.lengths.append(length)
                self.terminated += bool(step.terminated[member, 0])
                if envs.spec.on_error:
                    self.raised += int(envs.info.last[member, envs.info.names.index(RAISED)])
                running[member, 0] = False
            if self.steps >= end:
                self.unfinished[-1] = length if running.any() else 0
                return
            if time.monotonic() - self.began > SECONDS:
                raise TooSlow

    def to_json(self) -> dict[str, Any]:
        """Return the figures in the form of `probe`."""
        rewards, random = np.array(self.rewards, np.float64), self.random_steps
        return {
            "seed": self.identity.seed,
            "steps": self.steps,
            "slow": self.seconds / self.steps if self.slow else None,
            "random": self.returns[0][0] if self.returns else [],
            "untrained": [returns for of_kind in self.returns[1:] for returns in of_kind],
            "lengths": self.lengths,
            "terminated": self.terminated,
            "unfinished": dict(zip(("random", "untrained"), self.unfinished, strict=False)),
            "rewards": _moments(rewards[:random]),
            "zero_rewards": float((rewards == 0).mean()) if len(rewards) else None,
            "zero_sum": bool(rewards.any() and not rewards.sum(-1).any()),
            "observations": _moments(np.array(self.numbers)) if self.numbers else None,
            "largest_pixel": self.largest_pixel,
            "restore": self.restore,
            "failures": self.failures,
            "raised": self.raised,
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
