"""Environments that are computed all at once by a library of its own, in a pool: EnvPool's, Gymnasium's vector ones.

A pool can not save its state, so each epoch has a new one (restart mode), in the uninterrupted run too. Such libraries
reset an environment one step late, in place of a step; here those that ended are reset at once, so that no step is lost
and what followed the last action is the true final observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces

from ...rng import streams
from ..base import Array
from ..encode import Actions, Observations
from ..gym.make import Spaces
from ..gym.selftest import Restore
from ..gym.stage import Options, Shown
from ..spec import EnvSpec
from .makers import make_pool

STEPS, IMAGE_STEPS = 64, 8  # that the self-test compares


class Pool:
    """A stage whose environments are one pool."""

    def __init__(self, spec: EnvSpec, count: int, threads: int, encoder: Observations) -> None:
        self.spec, self.count, self.threads, self.encoder = spec, count, min(max(1, threads), count), encoder
        self.pool: Any = None  # see `pool_makers.Made`
        # Boxes are copied all at once; what has parts is written environment by environment.
        self.whole = encoder.kind == "vector" and isinstance(pool_spaces(spec).observation, spaces.Box)

    def begin(self, places: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        """Begins an episode at each place; ``fresh`` makes a new pool, of all places, with these seeds."""
        if fresh:
            assert len(places) == self.count
            self.close()
            self.pool = make_pool(self.spec, list(seeds), self.threads)
        obs, env_id = self.pool.reset(np.asarray(places, np.int32), np.asarray(seeds))
        return self._encoded(obs, self._order(env_id, places))

    def step(self, actions: Array) -> Shown:
        obs, reward, terminated, truncated, env_id = self.pool.step(actions)
        order = self._order(env_id, range(self.count))
        ended = [np.array(np.asarray(flags)[order], np.bool_) for flags in (terminated, truncated)]
        return Shown(self._encoded(obs, order), np.asarray(reward, np.float64)[order], *ended)

    def _order(self, env_id: Array, places: Sequence[int]) -> Array:
        """Where in an answer each of these (rising) places is."""
        order = np.argsort(env_id)
        assert np.array_equal(env_id[order], np.asarray(places))
        return order

    def _encoded(self, obs: Any, order: Array) -> Array:
        if self.whole:
            return np.asarray(obs)[order].reshape(len(order), *self.encoder.shape).astype(self.encoder.dtype)
        out = np.zeros((len(order), *self.encoder.shape), self.encoder.dtype)
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
    """The spaces of one environment of a pool."""
    pool = make_pool(spec, [0], 1)
    shown, taken = _space(pool.observation_space), _space(pool.action_space)
    pool.close()
    return Spaces(shown, taken)


def _space(space: Any) -> spaces.Space[Any]:
    """EnvPool gives some of its Dicts as dicts."""
    return spaces.Dict({name: _space(part) for name, part in space.items()}) if isinstance(space, dict) else space


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
    encoder = Observations(shown, spec.id)
    pool = Pool(spec, len(places), threads, encoder)
    here = range(len(places))
    seen = [[obs] for obs in pool.begin(here, [streams.seed_of("self-test", p) for p in places], [None] * 3, True)]
    for step in range(IMAGE_STEPS if encoder.kind == "image" else STEPS):
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
