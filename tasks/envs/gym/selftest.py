"""The self-test that finds an exact way to restore an environment.

It compares a used environment with new ones, with the same seeds and actions: every observation, reward and end, bit
for bit.
"""

from __future__ import annotations

import itertools
import reprlib
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from ...errors import EnvironmentFailed, TaskError
from ...rng import streams
from ...runtime.progress import tick
from ..base import info
from ..base.curriculum import KWARGS, Curriculum
from ..base.encode import Actions, Observations
from ..base.envs import Array
from ..base.spec import EnvSpec, EnvSpecError
from . import snapshot
from .make import Env, close_env, make_drawn, make_env, of_reset
from .turns import take_turn

EPISODES, STEPS, IMAGE_STEPS = 6, 100, 8
SNAPSHOTS_AT = (1, 4, 16)  # steps after which a snapshot is tried
DRAWS = (0, 0, 1, 2)  # of seeds and actions, for each attempt; the second one tells failing always from failing once


class Episode(NamedTuple):
    """An episode to play."""

    seed: int
    actions: Array
    parameters: dict[str, Any]


class Record(NamedTuple):
    """A step of an episode."""

    observation: bytes
    reward: float
    terminated: bool
    truncated: bool
    info: bytes  # the numbers that the spec names


@dataclass(frozen=True)
class Restore:
    """A way to restore an environment's state.

    Attributes:
        mode: "snapshot", "replay" or "restart".
        exact: whether it is exact, bit for bit.
        reason: explanation for people.
        renew: whether every episode needs a new environment object, since a used one keeps a trace of its past.
        unreported: names of numbers in `info` that the spec does not name.
        cure: what to do if it is not exact.
        advice: what else users should know, each with what to do about it.
        single_instance: whether only one environment can exist at a time.
    """

    mode: str
    exact: bool
    reason: str
    renew: bool = False
    unreported: tuple[str, ...] = ()
    cure: str = "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"
    advice: tuple[str, ...] = ()
    single_instance: bool = False


class _SingleInstance(Exception):
    """A second environment could not be made while the first was open."""


@dataclass
class _Trial:
    """An environment under test.

    Attributes:
        spec: spec of the environment.
        new: function that creates one.
        close: function that closes all that it created.
        alone: whether it closes the one before, since there can be only one.
        numbers: names of numbers that were seen in `info`.
        read: names of options that a reset has read.
    """

    spec: EnvSpec
    new: Callable[[], Env]
    close: Callable[[], None]
    alone: bool
    numbers: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


@cache
def self_test(spec: EnvSpec) -> Restore:
    """Return the best exact way to restore this environment.

    The test runs once per process.
    """
    return patiently(spec, lambda draw: _tested(spec, draw))


def patiently(spec: EnvSpec, test: Callable[[int], Restore]) -> Restore:
    """Return the result of a test, repeated if the environment's code raises.

    Training tolerates a simulator that fails rarely: a trial resumes from its last checkpoint, or one of many trials
    fails. The test therefore raises (its first error) only if every attempt fails, and warns otherwise.

    Args:
        spec: the environment's spec.
        test: called with the number of a draw of seeds and actions.
    """
    failed: list[Exception] = []
    for draw in DRAWS:
        try:
            restore = test(draw)
        except Exception as error:
            if isinstance(error, MemoryError | TaskError) and not isinstance(error, EnvironmentFailed):
                raise  # not a failure of the environment's code
            failed.append(error)
        else:
            if failed:
                _warn(spec, failed)
            return restore
    raise failed[0]


def _warn(spec: EnvSpec, failed: list[Exception]) -> None:
    again = "does not with the same" if len(failed) == 1 else "does so again with the same, but not with other"
    warnings.warn(
        f"{spec.id}: the environment's own code raised {type(failed[0]).__name__} ({failed[0]}) in its self-test, and "
        f"{again} seeds and actions; a trial that meets this is retried from its last checkpoint, and fails if it "
        f"happens again and again",
        stacklevel=4,
    )


def _tested(spec: EnvSpec, draw: int) -> Restore:
    """Return the best exact way to restore, tested with one draw."""
    take_turn()
    try:
        return _tested_alone(spec, draw, spec.single_instance)
    except _SingleInstance:
        return _tested_alone(spec, draw, True)


def _tested_alone(spec: EnvSpec, draw: int, alone: bool) -> Restore:
    """Return the best exact way, found by one environment at a time."""
    with ExitStack() as made:
        count = itertools.count()

        def new() -> Env:
            if alone:
                made.close()
            try:
                env = make_env(spec)
            except Exception:
                if alone or not next(count):
                    raise
                made.close()
                if not _allows_one(spec):
                    raise
                raise _SingleInstance from None
            next(count)
            made.callback(close_env, env, spec)
            return env

        trial = _Trial(spec, new, made.close, alone)
        restore = _compare(trial, draw)
        _check_read(trial)
        unreported = tuple(sorted(trial.numbers - spec.info.keys()))
        return replace(restore, unreported=unreported, single_instance=alone)


def _allows_one(spec: EnvSpec) -> bool:
    """Return whether a second environment at the same time fails."""
    first = make_env(spec)
    try:
        close_env(make_env(spec), spec)
    except Exception:  # noqa: BLE001 - simulators may raise anything
        return True
    else:
        return False
    finally:
        close_env(first, spec)


def _reads_one(method: Any) -> Any:
    def read(self: _Watched, name: str, *more: Any) -> Any:
        self.noted.add(name)
        return method(self, name, *more)

    return read


def _reads_all(method: Any) -> Any:
    def read(self: _Watched, *more: Any) -> Any:
        self.noted.update(dict.keys(self))
        return method(self, *more)

    return read


class _Watched(dict[str, Any]):
    """Options of a reset that note which of them are read."""

    def __init__(self, options: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(options)
        self.noted = read

    __getitem__, __contains__ = _reads_one(dict.__getitem__), _reads_one(dict.__contains__)
    get, pop = _reads_one(dict.get), _reads_one(dict.pop)
    __iter__, __or__ = _reads_all(dict.__iter__), _reads_all(dict.__or__)
    keys, values, items, copy = (_reads_all(method) for method in (dict.keys, dict.values, dict.items, dict.copy))


def _check_read(trial: _Trial) -> None:
    """Raise EnvSpecError if no reset has read a parameter."""
    for name in of_reset(trial.spec.parameters) or {}:
        if name not in trial.read:
            raise EnvSpecError(
                f"{trial.spec.id}: parameters are options that the environment's reset reads, but it does not read "
                f"{name!r}; an argument of its constructor is named '{KWARGS}{name}'"
            )


def _compare(trial: _Trial, draw: int) -> Restore:
    """Find the way to restore an environment, the most convenient first.

    The same episodes are played one after another in a used environment, and each in a new one. If some differ, either
    chance has a part in them, or the environment remembers earlier episodes.
    """
    used = trial.new()
    plan = _plan(used, trial.spec, draw)
    if any(name.startswith(KWARGS) for name in trial.spec.parameters):
        return _of_drawn(trial, used, plan)
    of_used = [_episode(trial, used, episode) for episode in plan]
    of_new = [_episode(trial, trial.new(), episode) for episode in plan]
    differences = [_difference(old, new) for old, new in zip(of_used, of_new, strict=True)]
    differ = [i for i, difference in enumerate(differences) if difference is not None]
    if not differ:
        if trial.alone:
            used = trial.new()
            _episode(trial, used, plan[0])
        return _clean(trial, used, plan[0])

    for i in {0, differ[0]}:
        if (where := _difference(of_new[i], _episode(trial, trial.new(), plan[i]))) is not None:
            return Restore("restart", False, f"two new environments with the same seed and actions differ in {where}")
    remembered = f"an earlier episode shows in {differences[differ[0]]}"
    if all(of_used[i][0] == of_new[i][0] for i in differ) and snapshot.only_transparent(used):
        # Episodes start equal, but a trace of earlier ones survives in the simulator.
        return Restore("replay", True, f"{remembered}, so each episode has a new environment", renew=True)
    # The memory may be intended (running statistics, a curriculum), so the environment keeps it within an epoch.
    other = trial.new()
    for episode, played in zip(plan, of_used, strict=True):
        if (where := _difference(played, _episode(trial, other, episode))) is not None:
            return Restore("restart", False, f"two new environments with the same seeds and actions differ in {where}")
    return Restore("restart", True, f"{remembered}, so each epoch begins with new environments")


def _of_drawn(trial: _Trial, like: Env, plan: list[Episode]) -> Restore:
    """Return the way to restore environments whose arguments are drawn per episode."""
    for episode in plan:
        one, other = (_drawn_episode(trial, like, episode) for _ in range(2))
        if (where := _difference(one, other)) is not None:
            return Restore("restart", False, f"two new environments with the same seed and actions differ in {where}")
    return Restore("replay", True, "each episode has a new environment, whose arguments are drawn", renew=True)


def _drawn_episode(trial: _Trial, like: Env, episode: Episode) -> list[Record]:
    """Return the records of an episode in an own environment."""
    if trial.alone:
        trial.close()
    env = make_drawn(trial.spec, episode.parameters, like)
    try:
        return _episode(trial, env, episode)
    finally:
        close_env(env, trial.spec)


def _clean(trial: _Trial, env: Env, episode: Episode) -> Restore:
    """Return the way to restore an environment with independent episodes."""
    if snapshot.has_snapshot(env) and _snapshots_hold(trial, env, episode):
        return Restore("snapshot", True, "its simulator's state, loaded into a new environment, continues alike")
    if snapshot.keeps_world(env):
        # Box2D reuses freed memory, so the order of contacts can depend on earlier episodes.
        reason = "its Box2D world outlives an episode, so each episode has a new environment"
        return Restore("replay", True, reason, renew=True)
    return Restore("replay", True, "the same seed and actions give the same episode in used and in new environments")


def _plan(env: Env, spec: EnvSpec, draw: int) -> list[Episode]:
    """Return episodes of different lengths to try.

    There are several, since a trace of the past can depend on their number.
    """
    codec = Actions(env.action_space, spec.id)
    steps = IMAGE_STEPS if Observations(env.observation_space, spec.id).kind != "vector" else STEPS
    width = int(np.prod(codec.learner_shape))
    draws = streams.uniform(streams.key("self-test", *([draw] if draw else [])), np.arange(steps * width))
    actions = codec.decode(codec.pick(draws.reshape(steps, width)))
    drawn = Curriculum(spec.parameters, [0], "self-test", tuple(spec.info))
    seeds = range(draw * EPISODES, (draw + 1) * EPISODES)
    return [Episode(seed, actions[: len(actions) // (1 + seed % 3)], drawn.options(0, seed)) for seed in seeds]


def _episode(trial: _Trial, env: Env, episode: Episode) -> list[Record]:
    """Return the records of an episode, as long as there are actions."""
    obs = _first(trial, env, episode.seed, episode.parameters)
    return [Record(_bits(obs), 0.0, False, False, b""), *_steps(trial, env, episode.actions)]


def _first(trial: _Trial, env: Env, seed: int, parameters: dict[str, Any]) -> Any:
    """Return the first observation of an episode."""
    told = of_reset(parameters)
    tick()
    given = env.reset(seed=seed, **({} if told is None else {"options": _Watched(told, trial.read)}))
    if not isinstance(given, tuple) or len(given) != 2:
        raise EnvSpecError(
            f"{trial.spec.id}: reset returns (observation, info), as Gymnasium's does, but it returned "
            f"{reprlib.repr(given)}; fix it"
        )
    _check_shape(given[0], env.observation_space, trial.spec, "reset")
    return given[0]


def _check_shape(obs: Any, space: spaces.Space[Any], spec: EnvSpec, where: str) -> None:
    """Raise EnvSpecError if an observation has the wrong shape.

    NumPy would broadcast its numbers, or fail later and elsewhere.
    """
    if isinstance(space, spaces.Box) and np.size(obs) != int(np.prod(space.shape)):
        raise EnvSpecError(
            f"{spec.id}: an observation has the shape that observation_space names, {space.shape}, but {where} gave "
            f"{np.shape(obs)}; fix one of them"
        )


def _check_step(given: Any, space: spaces.Space[Any], spec: EnvSpec) -> None:
    """Raise EnvSpecError unless a step has returned what Gymnasium's do."""
    try:
        obs, reward, terminated, truncated, said = given
        float(reward), bool(terminated), bool(truncated), said.items()
    except (TypeError, ValueError, AttributeError) as error:
        raise EnvSpecError(
            f"{spec.id}: step returns (observation, reward, terminated, truncated, info), as Gymnasium's does, with a "
            f"number, two booleans and a dict, but it returned {reprlib.repr(given)} ({error}); fix it"
        ) from None
    _check_shape(obs, space, spec, "step")


def _steps(trial: _Trial, env: Env, actions: Array) -> list[Record]:
    records: list[Record] = []
    reported = tuple(trial.spec.info)
    entries = np.empty(len(reported))
    for action in actions.copy():
        given = env.step(action)
        tick()
        _check_step(given, env.observation_space, trial.spec)
        obs, reward, terminated, truncated, said = given
        trial.numbers.update(info.numbers_in(said))
        info.write(said, reported, entries, trial.spec.id)
        records.append(Record(_bits(obs), float(reward), bool(terminated), bool(truncated), entries.tobytes()))
        if terminated or truncated:
            break
    return records


def _bits(obs: Any) -> bytes:
    """Return the bytes of an observation of any space."""
    if isinstance(obs, Mapping):
        return b"".join(_bits(obs[name]) for name in sorted(obs))
    if isinstance(obs, tuple):
        return b"".join(map(_bits, obs))
    return np.asarray(obs).tobytes()


def _difference(one: list[Record], other: list[Record]) -> str | None:
    """Describe the first difference of two episodes; None if they are equal."""
    for step, (x, y) in enumerate(zip_longest(one, other)):
        if x is None or y is None:
            return f"the length of the episode ({min(len(one), len(other)) - 1} steps)"
        for part, p, q in zip(Record._fields, x, y, strict=True):
            if p != q and not (p != p and q != q):
                return f"the {part} at step {step}"
    return None


def _snapshots_hold(trial: _Trial, env: Env, episode: Episode) -> bool:
    """Return whether snapshots, loaded into another environment, continue alike."""
    _, actions, options = episode
    _first(trial, env, 1, options)
    shots = []
    records: list[Record] = []
    for step in range(len(actions)):
        records += _steps(trial, env, actions[step : step + 1])
        if records[-1].terminated or records[-1].truncated:
            break
        if len(records) in SNAPSHOTS_AT:
            shots.append((len(records), snapshot.take(env)))
    other = trial.new()
    for at, shot in shots:
        _first(trial, other, 2, options)
        snapshot.put(other, shot, at)
        if _difference(records[at:], _steps(trial, other, actions[at:])) is not None:
            return False
    return bool(shots)
