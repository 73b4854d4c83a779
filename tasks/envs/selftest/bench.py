"""The test bench, on which environments play recorded episodes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from time import monotonic  # this name stays right where `clock_ahead` changes the module
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...errors import TaskError, class_and_text
from ...runtime.progress import tick
from ..agents.adapter import OWN_INFO, is_joint
from ..base import info
from ..base.curriculum import KWARGS
from ..base.envs import Array
from ..base.failures import close_env
from ..base.masks import unused_mask, with_legal_actions
from ..base.observations import Observations
from ..base.spec import EnvSpec, EnvSpecError
from ..gym.make import Env, action_space_of, begin_episode, check_actions, make_env, make_for_episode, of_reset
from ..gym.rewards import check_step
from ..gym.surroundings import stopped
from .episodes import Episode, Record, bits_of, difference
from .watched_options import WatchedOptions

TOTAL = 1_500  # steps of a whole test, about, if it finds nothing
SLOW = 10.0  # seconds after which a warning tells that it takes long


class Premises(NamedTuple):
    """Facts about an environment that a test takes for granted.

    Attributes:
        generators: global generators that each environment has to itself, since it draws from them, see `chance`.
        single_instance: whether only one environment can exist at a time.
        zero_is_none: whether a reset takes seed 0 for no seed, so that no episode of the test may have it.
    """

    generators: tuple[str, ...] = ()
    single_instance: bool = False
    zero_is_none: bool = False


class Refuted(Exception):
    """A premise is wrong; the test is repeated with the right ones."""

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self.premises = premises


class Bench:
    """Environments under test, which play episodes step by step.

    Attributes:
        spec: spec of the environments.
        premises: what is taken for granted of them; with `single_instance`, a new one closes the others.
    """

    def __init__(self, spec: EnvSpec, premises: Premises) -> None:
        self.spec, self.premises = spec, premises
        self._open = ExitStack()
        self._first: Env | None = None  # the first environment, whose spaces all others have
        self._actions: gym.Space[Any] | None = None
        self._encoder: Observations | None = None
        self._outside: str | None = None  # description of a number outside of the bounds of an observation
        self._unused_mask: str | None = None  # advice about a mask that no policy sees
        self._numbers: set[str] = set()  # names of numbers that were seen in `info`
        self._options_read: set[str] = set()
        self._midway: dict[int, Env] = {}  # environments in the middle of an episode, by identity
        self._steps, self._began = 0, 0.0

    def new(self) -> Env:
        """Create an environment, which stays open until `close`.

        Raises:
            Refuted: only one environment can exist at a time.
        """
        env = self._made({})
        self._open.callback(close_env, env, self.spec)
        return with_legal_actions(env, self.spec.id)

    def close(self) -> None:
        """Close all environments."""
        self._open.close()

    def alone(self, episode: Episode) -> list[Record]:
        """Return the records of an episode in an environment of its own.

        Raises:
            Refuted: only one environment can exist at a time.
        """
        env = self._made(episode.parameters)
        try:
            return self.play(with_legal_actions(env, self.spec.id), episode)
        finally:
            close_env(env, self.spec)

    def chance(self, episode: Episode) -> str | None:
        """Describe how an episode differs between two new environments, or None."""
        return difference(self.alone(episode), self.alone(episode))

    def in_turns(self, *plans: list[Episode]) -> list[list[list[Record]]]:
        """Return the records of episodes in new environments, one for each plan.

        The environments are stepped in turns, or one after another if there can be only one.
        """

        def turns(env: Env, plan: list[Episode], done: list[list[Record]]) -> Iterator[None]:
            for episode in plan:
                done.append([])
                for record in self._records(env, episode):
                    done[-1].append(record)
                    yield

        if self.premises.single_instance and len(plans) > 1:
            return [self.in_turns(plan)[0] for plan in plans]
        records: list[list[list[Record]]] = [[] for _ in plans]
        envs = [self.new() for _ in plans]
        for _ in zip_longest(*map(turns, envs, plans, records)):
            pass
        return records

    def play(self, env: Env, episode: Episode) -> list[Record]:
        """Return the records of an episode, as long as there are actions."""
        return [*self._records(env, episode)]

    def begin(self, env: Env, episode: Episode) -> Any:
        """Return the first observation of an episode."""
        result = of_reset(episode.parameters)
        tick()
        options = None if result is None else WatchedOptions(result, self._options_read)
        begin = partial(self._call, begin_episode, env, self.spec, episode.seed, options, self._actions)
        try:
            obs = begin()
        except Exception as error:
            if isinstance(error, TaskError) or not self._is_refused(begin, env, episode):
                raise
            raise EnvSpecError(
                f"{self.spec.id}: an environment can be reset at any time, but in the middle of an episode its reset "
                f"raised {class_and_text(error)}; let it begin a new episode there, too"
            ) from error
        self._midway.pop(id(env), None)
        self._check(env, obs, "reset")
        return obs

    def _is_refused(self, begin: Callable[[], Any], env: Env, episode: Episode) -> bool:
        """Return whether an environment works, but refuses a reset in its episode."""
        if id(env) not in self._midway:
            return False
        for call, refused in ((begin, False), (partial(env.step, episode.actions[0].copy()), True)):
            try:
                call()
            except Exception:  # noqa: BLE001 - simulators may raise anything
                continue
            return refused  # a reset that succeeds now had failed by accident
        return False

    def steps(self, env: Env, actions: Array) -> Iterator[Record]:
        """Yield the records of a running episode, until it ends."""
        reported = tuple(self.spec.info)
        entries = np.empty(len(reported))
        for action in actions.copy():
            try:
                result = self._call(env.step, action)
            except Exception:
                check_actions(env, self.spec, self._actions)
                raise
            self._midway[id(env)] = env
            tick()
            self._count()
            check_step(result, self.spec)
            obs, reward, terminated, truncated, step_info = result
            self._check(env, obs, "step")
            self._note(env, info.as_dict(step_info, self.spec.id))
            info.write(step_info, reported, entries, self.spec.id)
            bits = bits_of(obs, env.observation_space)
            yield Record(bits, float(reward), bool(terminated), bool(truncated), entries.tobytes())
            if terminated or truncated:
                del self._midway[id(env)]
                break

    def check_parameters(self) -> None:
        """Raise EnvSpecError if no reset has read a parameter."""
        for name in of_reset(self.spec.parameters) or {}:
            if name not in self._options_read:
                raise EnvSpecError(
                    f"{self.spec.id}: parameters are options that the environment's reset reads, but it does not read "
                    f"{name!r}; an argument of its constructor is named '{KWARGS}{name}'"
                )

    def unreported(self) -> tuple[str, ...]:
        """Return the names in `info` of numbers that are not reported."""
        prefixes = OWN_INFO if is_joint(self.spec) else ()
        return tuple(sorted(name for name in self._numbers - self.spec.info.keys() if not name.startswith(prefixes)))

    def advice(self) -> tuple[str, ...]:
        """Return advice on faults that do not hinder a training."""
        zero = "reset takes seed 0 for no seed; write `if seed is not None` where it says `if seed`"
        texts = [zero] if self.premises.zero_is_none else []
        texts += [f"{self._outside}; correct the bounds"] if self._outside else []
        texts += [self._unused_mask] if self._unused_mask else []
        return tuple(f"{self.spec.id}: {text}" for text in texts)

    def _made(self, parameters: Mapping[str, Any]) -> Env:
        """Create an environment for an episode with these parameters."""
        if self.premises.single_instance:
            self.close()
        try:
            env = make_for_episode(self.spec, self.premises.generators, parameters, self._first)
        except Exception:
            if self.premises.single_instance or self._first is None:
                raise
            self.close()
            if not _allows_one(self.spec):
                raise
            raise Refuted(self.premises._replace(single_instance=True)) from None
        if self._first is None:
            self._first, self._actions = env, action_space_of(env, self.spec)
        return env

    def _records(self, env: Env, episode: Episode) -> Iterator[Record]:
        obs = self.begin(env, episode)
        yield Record(bits_of(obs, env.observation_space), 0.0, False, False, b"")
        yield from self.steps(env, episode.actions)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call an environment's method; its StopIteration would end our own generators."""
        try:
            return method(*arguments)
        except StopIteration as error:
            raise stopped(self.spec.id) from error

    def _check(self, env: Env, obs: Any, method: str) -> None:
        """Raise BadObservation if an observation contradicts its space."""
        if self._encoder is None:
            self._encoder = Observations(env.observation_space, self.spec.id)
        self._encoder.check(obs, method)
        self._outside = self._outside or self._encoder.outside(obs)

    def _note(self, env: Env, entries: Mapping[str, Any]) -> None:
        """Note the numbers in `info`, and a mask."""
        self._numbers.update(info.numbers_in(entries))
        self._unused_mask = self._unused_mask or unused_mask(env, entries)

    def _count(self) -> None:
        """Count a step, and warn once if the test will take long."""
        if not self._steps:
            self._began = monotonic()  # after the first step, before which code may be imported or compiled
        self._steps += 1
        seconds = monotonic() - self._began
        if seconds > SLOW:
            step = seconds / max(1, self._steps - 1)
            warnings.warn(
                f"{self.spec.id}: the self-test, which finds out how a state is restored, takes {TOTAL:,} steps or "
                f"more in each process; at {step:.2g} s a step that is {step * TOTAL / 60:,.1f} minutes; to go "
                'without it, declare the way in the environment\'s JSON: {"id": ..., "restore": "restart"}',
                stacklevel=2,
            )
            self._began = math.inf


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
