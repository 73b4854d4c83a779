"""EnvPool's environments: all of a batch in one pool of its, stepped by threads; ``EnvSpec("envpool/CartPole-v1")``.

Weng et al. (2022), arXiv:2206.10558. A pool can neither save its state nor be seeded again, so each epoch has a new one
(restart mode), in the uninterrupted run too. It resets an environment one step late, in place of a step; here those
that ended are reset at once, so that no step is lost and what followed the last action is the true final observation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium import spaces

from .. import streams
from .base import Array
from .encode import Actions, Observations
from .make import Spaces
from .selftest import Restore
from .spec import EnvSpec, EnvSpecError
from .stage import Options, Shown

PREFIX = "envpool/"
OURS = frozenset({"num_envs", "batch_size", "num_threads", "seed", "max_num_players"})  # what no spec may say
STEPS = 64  # that the self-test compares


def is_pool(spec: EnvSpec) -> bool:
    """Whether EnvPool makes this environment."""
    return spec.id.startswith(PREFIX)


class Pool:
    """A stage whose environments are one pool; episodes after the first of an epoch follow from that one's seed."""

    def __init__(self, spec: EnvSpec, count: int, threads: int, encoder: Observations) -> None:
        self.spec, self.count, self.threads, self.encoder = spec, count, min(max(1, threads), count), encoder
        self.pool: Any = None
        # Boxes are copied all at once; what has parts is written environment by environment.
        self.whole = encoder.kind == "vector" and isinstance(pool_spaces(spec).observation, spaces.Box)

    def begin(self, places: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        """Begins an episode at each place; ``fresh`` makes a new pool, of all places, with these seeds."""
        if fresh:
            assert len(places) == self.count
            self.close()
            limit = {} if self.spec.max_episode_steps is None else {"max_episode_steps": self.spec.max_episode_steps}
            self.pool = _make(self.spec, num_envs=self.count, seed=list(seeds), num_threads=self.threads, **limit)
        obs, info = self.pool.reset(np.asarray(places, np.int32))
        return self._encoded(obs, len(places), self._order(info, places))

    def step(self, actions: Array) -> Shown:
        obs, reward, terminated, truncated, info = self.pool.step(actions)
        order = self._order(info, range(self.count))
        ended = [np.array(np.asarray(flags)[order], np.bool_) for flags in (terminated, truncated)]
        return Shown(self._encoded(obs, self.count, order), np.asarray(reward, np.float64)[order], *ended)

    def _order(self, info: Mapping[str, Any], places: Sequence[int]) -> Array:
        """Where in EnvPool's answer each of these (rising) places is."""
        order = np.argsort(info["env_id"])
        assert np.array_equal(np.asarray(info["env_id"])[order], np.asarray(places))
        return order

    def _encoded(self, obs: Any, count: int, order: Array) -> Array:
        if self.whole:
            return np.asarray(obs)[order].reshape(count, *self.encoder.shape).astype(self.encoder.dtype)
        out = np.zeros((count, *self.encoder.shape), self.encoder.dtype)
        for row, place in zip(out, order.tolist(), strict=True):
            self.encoder.write(_row(obs, place), row)
        return out

    def replay(self, places: Sequence[int], actions: Sequence[Array]) -> list[Array | None]:
        raise NotImplementedError("a pool begins anew at each epoch")

    def take(self, places: Sequence[int]) -> list[Array]:
        raise NotImplementedError("a pool begins anew at each epoch")

    def put(self, places: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        raise NotImplementedError("a pool begins anew at each epoch")

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.pool = None


def _row(obs: Any, place: int) -> Any:
    """One environment's observation, in the form of its space."""
    if isinstance(obs, Mapping):
        return {name: _row(part, place) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_row(part, place) for part in obs)
    return obs[place]


@lru_cache(maxsize=64)
def pool_spaces(spec: EnvSpec) -> Spaces:
    """The spaces of an environment of EnvPool's."""
    pool = _make(spec, num_envs=1, seed=[0], num_threads=1)
    shown, taken = _space(pool.observation_space), _space(pool.action_space)
    pool.close()
    return Spaces(shown, taken)


def _space(space: Any) -> spaces.Space[Any]:
    """EnvPool gives some of its Dicts as dicts."""
    return spaces.Dict({name: _space(part) for name, part in space.items()}) if isinstance(space, dict) else space


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # EnvPool makes float32 Boxes of float64 bounds, which says nothing about the user's program.
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        yield


def _make(spec: EnvSpec, **ours: Any) -> Any:
    """A pool; EnvSpecError if there is no such environment, or it cannot be made so."""
    if spec.wrappers:
        raise EnvSpecError(f"{spec.id}: an environment of EnvPool's has no wrappers, but got {list(spec.wrappers)}; "
                           f"{spec.id.removeprefix(PREFIX)} from Gymnasium may have them")  # fmt: skip
    if spec.parameters:
        raise EnvSpecError(f"{spec.id}: a reset of EnvPool's takes no parameters, but got {', '.join(spec.parameters)}")
    if wrong := sorted(OURS & spec.kwargs.keys()):
        raise EnvSpecError(f"{spec.id}: kwargs must leave {', '.join(wrong)} to the task, which sets it")
    try:
        envpool = import_module("envpool")
    except ImportError as error:
        raise EnvSpecError(f"{spec.id} needs envpool; install it with `pip install rekindle[envpool]`") from error
    name = spec.id.removeprefix(PREFIX)
    if name not in envpool.list_all_envs():
        raise EnvSpecError(f"{spec.id} must be an environment that EnvPool knows: {_near(name, envpool)}")
    try:
        with _quiet():
            pool = envpool.make_gymnasium(name, **spec.kwargs, **ours)
            _ = pool.observation_space, pool.action_space  # made when they are first asked for
            return pool
    except (TypeError, ValueError, AssertionError) as error:
        raise EnvSpecError(f"{spec.id} cannot be made with kwargs {dict(spec.kwargs)}: {error}") from error


def _near(name: str, envpool: Any) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, envpool.list_all_envs(), n=1)
    return f"did you mean {PREFIX}{near[0]}?" if near else "`envpool.list_all_envs()` lists them"


@cache
def pool_test(spec: EnvSpec) -> Restore:
    """Whether pools with the same seeds show the same, and an environment the same whatever others are in its pool."""
    whole = _record(spec, range(3), threads=1)
    for places, threads, what in (
        (range(3), 1, "two new pools with the same seeds and actions differ"),
        (range(3), 3, "a pool with three threads differs from one with a single one"),
        (range(1, 2), 1, "an environment alone differs from the same one in a pool of three"),
    ):
        if _record(spec, places, threads) != [whole[place] for place in places]:
            return Restore("restart", False, what)
    return Restore("restart", True, "pools with the same seeds show the same, and each epoch begins with a new one")


def _record(spec: EnvSpec, places: Sequence[int], threads: int) -> list[bytes]:
    """All that each environment shows in some steps, with a seed and actions of its own."""
    shown, taken = pool_spaces(spec)
    codec = Actions(taken, spec.id)
    width = int(np.prod(codec.learner_shape))
    keys = np.array([streams.key("self-test", place) for place in places])[:, None]
    pool = Pool(spec, len(places), threads, Observations(shown, spec.id))
    here = range(len(places))
    seen = [[obs] for obs in pool.begin(here, [streams.seed_of("self-test", p) for p in places], [None] * 3, True)]
    for step in range(STEPS):
        draws = streams.uniform(keys, step * width + np.arange(width))
        now = pool.step(codec.decode(codec.pick(draws)))
        ended = np.flatnonzero(now.terminated | now.truncated).tolist()
        for place, row in enumerate(seen):
            row += [np.array(part[place]) for part in now]
        if ended:
            for place, obs in zip(ended, pool.begin(ended, [0] * len(ended), [None] * len(ended), False), strict=True):
                seen[place].append(obs)
    pool.close()
    return [b"".join(array.tobytes() for array in row) for row in seen]
