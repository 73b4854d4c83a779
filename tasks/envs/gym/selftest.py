"""The self-test that finds an exact way to restore an environment.

It compares used environments with new ones, with the same seeds and actions: every observation, reward and end, bit for
bit. The number of its steps is fixed, so its outcome does not depend on the machine's speed.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from itertools import zip_longest
from time import monotonic  # this name stays right where `clock_ahead` changes the module
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...errors import EnvironmentFailed, TaskError, text_of
from ...rng import streams
from ...runtime.progress import tick
from ..agents.adapter import OWN_INFO, is_joint
from ..base import info
from ..base.curriculum import KWARGS, Curriculum
from ..base.encode import Actions, Observations
from ..base.envs import Array
from ..base.failures import close_env
from ..base.masks import unused_mask, with_legal_actions
from ..base.spec import EnvSpec, EnvSpecError
from . import snapshot
from .chance import note_kept, noted_reads, watched_generators
from .clock import SHIFT, clock_ahead
from .kept_state import instance_state, shared_state
from .make import Env, begin_episode, make_drawn, make_env, of_reset
from .rewards import check_step
from .single_instance import take_turn
from .surroundings import guards_of, stopped

EPISODES, STEPS, IMAGE_STEPS = 6, 100, 40  # long episodes, and steps of the longest, for vectors and for images
SHORT, SHORT_STEPS = 24, 6  # short episodes: what survives a reset shows at their beginnings
TRACES, PAST, SEEN = 120, 2, 3  # pairs of episodes where a reset leaves something: steps of the first, of the second
TOTAL = 1_500  # steps of a whole test, about, if it finds nothing
LONG = 10.0  # seconds after which a warning tells that it takes long
SNAPSHOTS_AT = (1, 4, 16)  # steps after which a snapshot is tried
NOT_ZERO = 2**30  # a seed
DRAW = "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"
CALL_SEED = ", or if its method seed(seed) seeds it, let reset or a wrapper of it call that"
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
        generators: global generators that each environment gets to itself, see `chance`.
        single_instance: whether only one environment can exist at a time.
        played: digest of the episodes that new environments played, the same in every process; "" if it is not exact.
        elsewhere: why other processes play other episodes; "" if they do not, or were not asked.
        ages: "process" if playing changes what modules and classes keep, so that the age of a process may have an
            effect; "instance" if a reset leaves something of earlier episodes in an environment; "" otherwise.
    """

    mode: str
    exact: bool
    reason: str
    renew: bool = False
    unreported: tuple[str, ...] = ()
    cure: str = DRAW
    advice: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    single_instance: bool = False
    played: str = field(default="", compare=False)
    elsewhere: str = ""
    ages: str = ""


class _SingleInstance(Exception):
    """A second environment could not be made while the first was open."""


@dataclass
class _Trial:
    """An environment under test.

    Attributes:
        spec: spec of the environment.
        new: function that creates one.
        generators: global generators that each has to itself.
        close: function that closes all that it created.
        alone: whether it closes the one before, since there can be only one.
        numbers: names of numbers that were seen in `info`.
        read: names of options that a reset has read.
        encoder: encoder of observations.
        outside: description of a number outside of the bounds of an observation.
        unused_mask: advice about a mask that no policy sees.
        played: digest of the episodes that new environments played.
        ages: that of `Restore`.
        began: time after the first step.
        steps: number of steps so far.
    """

    spec: EnvSpec
    new: Callable[[], Env]
    close: Callable[[], None]
    generators: Sequence[str]
    alone: bool
    numbers: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    encoder: Observations | None = None
    outside: str | None = None
    unused_mask: str | None = None
    played: str = ""
    ages: str = ""
    began: float = 0.0
    steps: int = 0

    def count(self) -> None:
        """Count a step, and warn once if the test will take long."""
        if not self.steps:
            self.began = monotonic()  # after the first step, before which code may be imported or compiled
        self.steps += 1
        seconds = monotonic() - self.began
        if seconds > LONG:
            step = seconds / max(1, self.steps - 1)
            warnings.warn(
                f"{self.spec.id}: the self-test, which finds out how a state is restored, takes {TOTAL:,} steps or "
                f"more in each process; at {step:.2g} s a step that is {step * TOTAL / 60:,.1f} minutes; to go "
                'without it, declare the way in the environment\'s JSON: {"id": ..., "restore": "restart"}',
                stacklevel=2,
            )
            self.began = math.inf

    def check(self, env: Env, obs: Any, method: str) -> None:
        """Raise BadObservation if an observation contradicts its space."""
        if self.encoder is None:
            self.encoder = Observations(env.observation_space, self.spec.id)
        self.encoder.check(obs, method)
        self.outside = self.outside or self.encoder.outside(obs)


@cache
def self_test(spec: EnvSpec) -> Restore:
    """Return the best exact way to restore this environment.

    The test runs once per process.
    """
    with guards_of(spec.id).always:
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
            if isinstance(error, MemoryError | TaskError | Warning) and not isinstance(error, EnvironmentFailed):
                raise  # not a failure of the environment's code, or one that the program wants
            failed.append(error)
        else:
            if failed:
                _warn(spec, failed)
            return restore
    raise failed[0]


def _warn(spec: EnvSpec, failed: list[Exception]) -> None:
    again = "does not with the same" if len(failed) == 1 else "does so again with the same, but not with other"
    raised = f"raised {type(failed[0]).__name__} ({text_of(failed[0])}) in its self-test"
    warnings.warn(
        f"{spec.id}: the environment's own code {raised}, and {again} seeds and actions; a trial that meets this is "
        "retried from its last checkpoint, and fails if it happens again and again",
        stacklevel=4,
    )


def _tested(spec: EnvSpec, draw: int) -> Restore:
    """Return the best exact way to restore, tested with one draw.

    If the environment draws from global generators, it is tested again with its own.
    """
    take_turn()
    used: set[str] = set()
    with watched_generators(used):
        restore = _tested_with((), spec, draw, spec.single_instance)
    if not used:
        return restore
    with watched_generators(set()):
        restore = _tested_with(sorted(used), spec, draw, restore.single_instance)
    return replace(restore, generators=tuple(sorted(used)))


def _tested_with(generators: Sequence[str], spec: EnvSpec, draw: int, alone: bool) -> Restore:
    """Return the best exact way with these generators."""
    with ExitStack() as instances:
        count = itertools.count()

        def new() -> Env:
            if alone:
                instances.close()
            try:
                env = make_env(spec, generators)
            except Exception:
                if alone or not next(count):
                    raise
                instances.close()
                if not _allows_one(spec):
                    raise
                raise _SingleInstance from None
            next(count)
            instances.callback(close_env, env, spec)
            return with_legal_actions(env, spec.id)

        trial = _Trial(spec, new, instances.close, generators, alone)
        try:
            restore = (_declared if spec.restore else _compare)(trial, draw)
        except _SingleInstance:
            return _tested_with(generators, spec, draw, alone=True)
        _check_read(trial)
        prefixes = OWN_INFO if is_joint(spec) else ()
        unreported = tuple(sorted(name for name in trial.numbers - spec.info.keys() if not name.startswith(prefixes)))
        advice = [f"{trial.outside}; correct the bounds"] if trial.outside else []
        advice += [trial.unused_mask] if trial.unused_mask else []
        return replace(
            restore,
            unreported=unreported,
            single_instance=alone,
            advice=(*restore.advice, *(f"{spec.id}: {text}" for text in advice)),
            played=trial.played if restore.exact and draw == 0 else "",
            ages=trial.ages,
        )


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


def _declared(trial: _Trial, draw: int) -> Restore:
    """Return the declared way to restore, after one step, which is checked."""
    env, mode = trial.new(), trial.spec.restore
    if mode == "snapshot" and not snapshot.has_snapshot(env):
        raise EnvSpecError(f"{trial.spec.id}: snapshots are those of MuJoCo and Atari; declare restore as 'replay'")
    episode = _plan(env, trial.spec, draw)[0]
    _episode(trial, env, episode._replace(actions=episode.actions[:1]))
    renew, cure = mode == "renew", "leave restore out, and the self-test finds the exact way, if there is one"
    return Restore("replay" if renew else mode, False, "this was not tested", renew, cure=cure)


def _compare(trial: _Trial, draw: int) -> Restore:
    """Find the way to restore an environment, the most convenient first.

    Two environments play the same episodes in opposite orders, step by step in turns, and new ones play some of them
    alone. If an episode differs, then chance has a part in it, or environments share what it depends on, or it depends
    on earlier episodes.
    """
    used = trial.new()
    plan = _plan(used, trial.spec, draw)
    if any(name.startswith(KWARGS) for name in trial.spec.parameters):
        return _of_drawn(trial, used, plan[:EPISODES])
    kept = shared_state(used)
    with noted_reads() as first_reads:
        ahead, reverse = _in_turns(trial, plan, plan[::-1])
    trial.ages = "process" if shared_state(used) != kept else ""
    back = reverse[::-1]
    with noted_reads() as later_reads:
        alone = [_alone(trial, episode) for episode in plan[:EPISODES]]
    note_kept(trial.spec.id, trial.spec.modules, first_reads, later_reads)
    trial.played = sha256(repr(alone).encode()).hexdigest()[:12]
    pairs = [*zip(ahead, back, strict=True), *zip(ahead, alone, strict=False)]
    differ = [i % len(plan) for i, (one, two) in enumerate(pairs) if _difference(one, two) is not None]
    if not differ:
        used = trial.new()
        with clock_ahead(used):
            later = _episode(trial, used, plan[0])
        if (difference := _difference(ahead[0], later)) is not None:
            reason = f"it depends on the time: {SHIFT.days} days later it differs in {difference}"
            return Restore("restart", False, reason, cure="count steps, and read neither time nor datetime")
        if not _keeps(trial, used, plan):
            return _clean(trial, used, plan[0])
        trial.ages = trial.ages or "instance"
        clean = _clean(trial, used, plan[0])
        if clean.mode == "snapshot" or clean.renew or (trace := _trace(trial, used, plan)) is None:
            return clean
        episode, one, two = trace
        return _remembering(trial, used, [episode], [one], [two])

    for episode in (plan[0], plan[differ[0]]):
        if (difference := _difference(_alone(trial, episode), _alone(trial, episode))) is not None:
            if episode.seed == 0 and _repeats(trial, episode._replace(seed=NOT_ZERO)):
                return _without_zero(trial, draw)
            reason = f"two new environments with the same seed and actions differ in {difference}"
            return Restore("restart", False, reason, cure=DRAW + (CALL_SEED if hasattr(used.unwrapped, "seed") else ""))
    [in_order], [again] = _in_turns(trial, plan), _in_turns(trial, plan)
    if (difference := _first_difference(in_order, again)) is not None:
        return Restore("restart", False, f"two new environments with the same seeds and actions differ in {difference}")
    [backwards] = _in_turns(trial, plan[::-1])
    if (difference := _first_difference([*in_order, *backwards], [*ahead, *reverse])) is not None:
        reason = f"environments of one process share what they depend on: stepped in turns, they differ in {difference}"
        return Restore("restart", False, reason, cure="keep all state in self, not in a class, a module or a file")
    return _remembering(trial, used, [plan[i] for i in differ], [ahead[i] for i in differ], [back[i] for i in differ])


def _keeps(trial: _Trial, used: Env, plan: list[Episode]) -> bool:
    """Return whether a reset leaves something of earlier episodes.

    What several of them leave is compared, since the last action, for example, may be the one that a new environment
    begins with.
    """
    if trial.alone:
        return False

    def state(env: Env) -> Any:
        _first(trial, env, plan[0].seed, plan[0].parameters)
        return instance_state(env)

    untouched = state(trial.new())
    if state(used) != untouched:
        return True
    for episode in plan[EPISODES : EPISODES + SHORT // 4]:
        _episode(trial, used, episode)
        if state(used) != untouched:
            return True
    return False


def _trace(trial: _Trial, used: Env, plan: list[Episode]) -> tuple[Episode, list[Record], list[Record]] | None:
    """Return an episode with its records after different pasts, if they differ.

    A trace may show rarely: of the last action, where an environment repeats it with a small probability. Many
    beginnings are compared for this, in two environments that have played something else before.
    """
    other, pasts = trial.new(), plan[EPISODES:]
    for k in range(TRACES):
        for env, past in ((used, pasts[k % SHORT]), (other, pasts[(k + 1 + k // SHORT) % SHORT])):
            _episode(trial, env, past._replace(actions=past.actions[:PAST]))
        episode = pasts[(k + SHORT // 2) % SHORT]
        episode = episode._replace(seed=plan[-1].seed + 1 + k, actions=episode.actions[:SEEN])
        one, two = _episode(trial, used, episode), _episode(trial, other, episode)
        if _difference(one, two) is not None:
            return episode, one, two
    return None


def _remembering(
    trial: _Trial, env: Env, plan: list[Episode], ahead: list[list[Record]], back: list[list[Record]]
) -> Restore:
    """Return the way to restore environments that remember episodes.

    These episodes were played in two orders.
    """
    alone = [_alone(trial, episode) for episode in plan]
    difference = _first_difference([*ahead, *back], [*alone, *alone])
    remembered = f"an earlier episode shows in {difference}"
    equal_starts = all(records[0] == new[0] for both in (ahead, back) for records, new in zip(both, alone, strict=True))
    if equal_starts and snapshot.only_transparent(env):
        # Episodes start equal, but a trace of earlier ones survives in the simulator.
        return Restore("replay", True, f"{remembered}, so each episode has a new environment", renew=True)
    # The memory may be intended (running statistics, a curriculum), so the environment keeps it within an epoch.
    forgotten = "this memory starts again in each epoch and in evaluation, so returns may differ; let reset clear it"
    advice = [_statistics(env, trial.spec) or f"{trial.spec.id}: {remembered}, and {forgotten}"]
    other = _alone(trial, plan[0]._replace(seed=plan[0].seed + len(DRAWS) * (EPISODES + SHORT)))
    if _difference(alone[0], other) is None:
        repeated = "each epoch repeats the same episodes, since the seed has no effect; draw from self.np_random"
        advice.append(f"{trial.spec.id}: {repeated}")
    reason = f"{remembered}, so each epoch begins with new environments"
    return Restore("restart", True, reason, advice=tuple(advice))


def _repeats(trial: _Trial, episode: Episode) -> bool:
    """Return whether two new environments play an episode alike."""
    return _difference(_alone(trial, episode), _alone(trial, episode)) is None


def _without_zero(trial: _Trial, draw: int) -> Restore:
    """Return the way for environments that take seed 0 for none.

    A training's episodes have seeds up to 2**31, so that one has seed 0 hardly ever.
    """
    restore = _compare(trial, draw + 1)
    advice = f"{trial.spec.id}: reset takes seed 0 for no seed; write `if seed is not None` where it says `if seed`"
    return replace(restore, advice=(*restore.advice, advice))


def _statistics(env: Env, spec: EnvSpec) -> str | None:
    """Return advice about a wrapper with running statistics, or None."""
    while isinstance(env, gym.Wrapper):
        for name, value in vars(env).items():
            if type(value).__name__ == "RunningMeanStd":
                cure = "normalize_obs" if "obs" in name else "normalize_reward"
                return (
                    f"{spec.id}: the running statistics of the wrapper {type(env).__name__} start again in each epoch "
                    f"and in evaluation, so returns are wrong; leave it out, and set {cure}=true"
                )
        env = env.env
    return None


def _of_drawn(trial: _Trial, like: Env, plan: list[Episode]) -> Restore:
    """Return the way to restore environments whose arguments are drawn per episode."""
    for episode in plan:
        one, other = (_drawn_episode(trial, like, episode) for _ in range(2))
        if (difference := _difference(one, other)) is not None:
            return Restore(
                "restart", False, f"two new environments with the same seed and actions differ in {difference}"
            )
    return Restore("replay", True, "each episode has a new environment, whose arguments are drawn", renew=True)


def _drawn_episode(trial: _Trial, like: Env, episode: Episode) -> list[Record]:
    """Return the records of an episode in an own environment."""
    if trial.alone:
        trial.close()
    env = with_legal_actions(make_drawn(trial.spec, trial.generators, episode.parameters, like), trial.spec.id)
    try:
        return _episode(trial, env, episode)
    finally:
        close_env(env, trial.spec)


def _clean(trial: _Trial, env: Env, episode: Episode) -> Restore:
    """Return the way to restore an environment with independent episodes."""
    if snapshot.has_snapshot(env) and not trial.spec.on_error and _snapshots_hold(trial, env, episode):
        return Restore("snapshot", True, "its simulator's state, loaded into a new environment, continues alike")
    if snapshot.keeps_world(env):
        # Box2D reuses freed memory, so the order of contacts can depend on earlier episodes.
        reason = "its Box2D world outlives an episode, so each episode has a new environment"
        return Restore("replay", True, reason, renew=True)
    return Restore("replay", True, "the same seed and actions give the same episode in used and in new environments")


def _plan(env: Env, spec: EnvSpec, draw: int) -> list[Episode]:
    """Return long episodes of different lengths, and many short ones.

    A trace of the past can depend on their number, and may show rarely. Actions are those of a policy in training: in a
    Box, a quarter of them lies at each bound.
    """
    codec = Actions(env.action_space, spec.id)
    steps = IMAGE_STEPS if Observations(env.observation_space, spec.id).kind != "vector" else STEPS
    width, count = int(np.prod(codec.learner_shape)), steps + SHORT * SHORT_STEPS
    draws = streams.uniform(streams.key("self-test", *([draw] if draw else [])), np.arange(count * width))
    actions = codec.decode(codec.pick(draws.reshape(count, width), beyond=0.5))
    drawn = Curriculum(spec.parameters, [0], "self-test", tuple(spec.info))
    sequences = [actions[: steps // (1 + k % 3)] for k in range(EPISODES)]
    sequences += np.split(actions[steps:], SHORT)
    first = draw * len(sequences)
    return [Episode(seed, actions, drawn.options(0, seed)) for seed, actions in enumerate(sequences, first)]


def _alone(trial: _Trial, episode: Episode) -> list[Record]:
    """Return the records of an episode in a new environment."""
    if trial.alone:
        trial.close()
    env = with_legal_actions(make_env(trial.spec, trial.generators), trial.spec.id)
    try:
        return [*_records(trial, env, episode)]
    finally:
        close_env(env, trial.spec)


def _episode(trial: _Trial, env: Env, episode: Episode) -> list[Record]:
    """Return the records of an episode, as long as there are actions."""
    return [*_records(trial, env, episode)]


def _in_turns(trial: _Trial, *plans: list[Episode]) -> list[list[list[Record]]]:
    """Return the records of episodes in new environments, one for each plan.

    The environments are stepped in turns, or one after another if there can be only one.
    """

    def turns(env: Env, plan: list[Episode], done: list[list[Record]]) -> Iterator[None]:
        for episode in plan:
            done.append([])
            for record in _records(trial, env, episode):
                done[-1].append(record)
                yield

    if trial.alone and len(plans) > 1:
        return [_in_turns(trial, plan)[0] for plan in plans]
    records: list[list[list[Record]]] = [[] for _ in plans]
    envs = [trial.new() for _ in plans]
    for _ in zip_longest(*map(turns, envs, plans, records)):
        pass
    return records


def _records(trial: _Trial, env: Env, episode: Episode) -> Iterator[Record]:
    obs = _first(trial, env, episode.seed, episode.parameters)
    yield Record(_bits(obs, env.observation_space), 0.0, False, False, b"")
    yield from _steps(trial, env, episode.actions)


def _first(trial: _Trial, env: Env, seed: int, parameters: dict[str, Any]) -> Any:
    """Return the first observation of an episode."""
    result = of_reset(parameters)
    tick()
    options = None if result is None else _Watched(result, trial.read)
    first = _call(trial.spec, begin_episode, env, trial.spec, seed, options)
    trial.check(env, first, "reset")
    return first


def _call(spec: EnvSpec, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call an environment's method; its StopIteration would end our own generators."""
    try:
        return method(*arguments, **named)
    except StopIteration as error:
        raise stopped(spec.id) from error


def _steps(trial: _Trial, env: Env, actions: Array) -> Iterator[Record]:
    reported = tuple(trial.spec.info)
    entries = np.empty(len(reported))
    for action in actions.copy():
        result = _call(trial.spec, env.step, action)
        tick()
        trial.count()
        check_step(result, trial.spec)
        obs, reward, terminated, truncated, step_info = result
        trial.check(env, obs, "step")
        info_entries = info.as_dict(step_info, trial.spec.id)
        trial.numbers.update(info.numbers_in(info_entries))
        trial.unused_mask = trial.unused_mask or unused_mask(env, info_entries)
        info.write(step_info, reported, entries, trial.spec.id)
        yield Record(
            _bits(obs, env.observation_space), float(reward), bool(terminated), bool(truncated), entries.tobytes()
        )
        if terminated or truncated:
            break


def _bits(obs: Any, space: gym.Space[Any]) -> bytes:
    """Return the bytes of an observation, without parts that its space lacks."""
    if isinstance(space, gym.spaces.Dict):
        return b"".join(_bits(obs[name], part) for name, part in sorted(space.spaces.items()))
    if isinstance(space, gym.spaces.Tuple):
        return b"".join(map(_bits, obs, space.spaces))
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


def _first_difference(ones: list[list[Record]], others: list[list[Record]]) -> str | None:
    """Describe the first difference of lists of episodes, or None."""
    return next(filter(None, map(_difference, ones, others)), None)


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
        if _difference(records[at:], [*_steps(trial, other, actions[at:])]) is not None:
            return False
    return bool(shots)
