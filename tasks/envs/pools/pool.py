"""A backend whose environments form one pool of a library.

A pool cannot save its state. Each epoch therefore uses a new one (restart mode), in the uninterrupted run too. Such
libraries reset an environment one step late, in place of a step. Here environments whose episode ended are reset at
once, so no step is lost and the last observation of an episode is the true final one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from ...rng import streams
from ...runtime.progress import at_work, tick
from ..base import info
from ..base.actions import Actions
from ..base.envs import Array
from ..base.images import with_scale
from ..base.observations import Observations
from ..base.space_rules import Spaces
from ..base.spec import EnvSpec, EnvSpecError
from ..gym.backend import FlatStep, Options, Outcome
from ..gym.restore import Restore
from ..gym.surroundings import guards_of
from ..selftest.attempts import patiently
from .makers import RawPool, VectorEntryPoint, make_pool, rows

STEPS, IMAGE_STEPS = 64, 8  # length of the self-test, for vectors and for images
END = 500  # steps in which the end of an episode is looked for
CROWDED = "an environment alone differs from the same one in a pool of three"


class Pool:
    """M environments in one pool."""

    elsewhere = ""

    def __init__(self, spec: EnvSpec, count: int, threads: int) -> None:
        self.spec, self.count, self.threads = spec, count, min(max(1, threads), count)
        self.pool: RawPool | None = None
        self.guards = guards_of(spec.id)
        space = pool_spaces(spec).observation
        self.encoder = Observations(space, spec.id)
        self.nothing = np.empty((count, 0))
        # Boxes are copied all at once, other spaces written environment by environment.
        self.whole = self.encoder.kind == "vector" and isinstance(space, spaces.Box)

    def begin(self, indices: Sequence[int], seeds: Sequence[int], options: Sequence[Options], fresh: bool) -> Array:
        """Start an episode at each index.

        If `fresh`, create a new pool with these seeds; then all indices must be given.
        """
        with self.guards.always:
            if fresh:
                assert len(indices) == self.count
                self.close()
                self.pool = make_pool(self.spec, list(seeds), self.threads)
            assert self.pool is not None
            obs, env_id = self.pool.reset(np.asarray(indices, np.int32), np.asarray(seeds))
            return self._encoded(obs, self._order(env_id, indices))

    def step(self, actions: Array, playing: NDArray[np.bool_]) -> FlatStep:
        """Step every environment: a pool knows no others."""
        with self.guards.stepping:
            assert self.pool is not None
            obs, reward, terminated, truncated, env_id, infos = self.pool.step(actions)
            tick()
            order = self._order(env_id, range(self.count))
            entries = self._entries(infos)
            if self.spec.info and isinstance(final := infos.get("final_info"), Mapping):  # of episodes that ended
                ended = np.asarray(terminated) | np.asarray(truncated)
                entries = np.where(ended[:, None], self._entries(final), entries)
            return FlatStep(
                self._encoded(obs, order),
                np.asarray(reward, np.float64)[order],
                np.array(np.asarray(terminated)[order], np.bool_),
                np.array(np.asarray(truncated)[order], np.bool_),
                entries[order],
            )

    def _entries(self, infos: Mapping[str, Any]) -> Array:
        if not self.spec.info:
            return self.nothing
        return np.stack([self._column(infos, name) for name in self.spec.info], 1)

    def _column(self, infos: Mapping[str, Any], name: str) -> Array:
        """Return an entry of `info` by environment; NaN where missing."""
        values = info.find(infos, name)
        if values is None:
            return np.full(self.count, np.nan)
        column = np.asarray(values)
        if column.dtype.kind not in "biuf" or column.size != self.count:
            raise EnvSpecError(
                f"{self.spec.id}: what is reported of info must be one number a step, but info[{name!r}] is "
                f"{column.dtype} of shape {column.shape[1:]}; leave it out"
            )
        outer, dot, inner = name.rpartition(".")
        mask = info.find(infos, f"{outer}{dot}_{inner}")  # Gymnasium's mask of those that have it
        numbers = column.reshape(self.count).astype(np.float64)
        return numbers if mask is None else np.where(mask, numbers, np.nan)

    def _order(self, env_id: Array, indices: Sequence[int]) -> Array:
        """Return the row of an answer for each of these (rising) indices."""
        order = np.argsort(env_id)
        assert np.array_equal(env_id[order], np.asarray(indices))
        return order

    def _encoded(self, obs: Any, order: Array) -> Array:
        if self.whole:
            batch = np.asarray(obs)
            if len(batch) <= order.max(initial=-1):
                raise EnvSpecError(
                    f"{self.spec.id}: {len(order)} environments return as many observations, but got an array of shape "
                    f"{batch.shape}; fix it"
                )
            return batch[order].reshape(len(order), *self.encoder.shape).astype(self.encoder.dtype)
        out = np.zeros((len(order), *self.encoder.shape), self.encoder.dtype)
        for row, i in zip(out, order.tolist(), strict=True):
            self.encoder.write(rows(obs, i), row)
        return out

    def replay(self, indices: Sequence[int], actions: Sequence[Array]) -> list[Outcome]:
        raise NotImplementedError("a pool restarts at each epoch")

    def play_again(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> Outcome:
        raise NotImplementedError("a pool restarts at each epoch")

    def marks(self) -> Mapping[str, str]:
        return {}

    def draws(self, index: int, seed: int, options: Options, actions: Array, fresh: bool) -> list[str]:
        raise NotImplementedError("a pool restarts at each epoch")

    def take(self, indices: Sequence[int]) -> list[Array]:
        raise NotImplementedError("a pool restarts at each epoch")

    def put(self, indices: Sequence[int], states: Sequence[Array], elapsed: Sequence[int]) -> None:
        raise NotImplementedError("a pool restarts at each epoch")

    def close(self) -> None:
        if self.pool is not None:
            with self.guards.always:
                self.pool.close()
        self.pool = None


@lru_cache(maxsize=64)
def pool_spaces(spec: EnvSpec) -> Spaces:
    """Return the spaces of one environment in a pool."""
    with at_work(), guards_of(spec.id).always:
        pool = make_pool(spec, [0], 1)
        observation = with_scale(_space(pool.observation_space), spec.scale, spec.id)
        spaces_ = Spaces(observation, _space(pool.action_space))
        pool.close()
    return spaces_


def _space(space: Any) -> spaces.Space[Any]:
    """Return a Gymnasium space; EnvPool gives some Dicts as plain dicts."""
    return spaces.Dict({name: _space(part) for name, part in space.items()}) if isinstance(space, dict) else space


@cache
def pool_test(spec: EnvSpec) -> Restore:
    """Return restart mode; it is exact if pools are reproducible.

    Their results must follow from the seeds, whatever their size and number of threads.
    """
    return patiently(spec, lambda draw: _tested(spec, range(3 * draw, 3 * draw + 3)))


def _tested(spec: EnvSpec, three: range) -> Restore:
    _check_end(spec, three)
    whole = _record(spec, three, threads=1)
    for state, threads, reason in (
        (slice(3), 1, "two new pools with the same seeds and actions differ"),
        (slice(3), 3, "a pool with three threads differs from one with a single one"),
        (slice(1, 2), 1, CROWDED),
    ):
        if _record(spec, three[state], threads) != whole[state]:
            if reason == CROWDED and _resets_all(spec, three):
                raise EnvSpecError(
                    f"{spec.id}: a vector environment resets those of its environments that options['reset_mask'] "
                    "selects, but others were reset, too; obey the mask, or step the environments one by one"
                )
            return Restore("restart", False, reason, cure="step its environments one by one, outside of the pool")
    reason = "pools repeat themselves by their seeds, and each epoch begins with a new one"
    return Restore("restart", True, reason, played="" if three[0] else sha256(b"".join(whole)).hexdigest()[:12])


def _check_end(spec: EnvSpec, numbers: Sequence[int]) -> None:
    """Raise EnvSpecError if episodes end against the pool's autoreset mode.

    One that begins the next episode in the same step must say so. Otherwise the next step only resets, without a
    reward.
    """
    pool, at_end = Pool(spec, len(numbers), 1), np.zeros(len(numbers), np.bool_)
    try:
        pool.begin(range(len(numbers)), [streams.seed_of("self-test", n) for n in numbers], [None] * 3, True)
        raw, codec = pool.pool, Actions(pool_spaces(spec).action, spec.id)
        if not isinstance(raw, VectorEntryPoint) or raw.autoreset in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            return
        actions = codec.decode(codec.pick(np.full((len(numbers), int(np.prod(codec.learner_shape))), 0.5)))
        for _ in range(IMAGE_STEPS if pool.encoder.kind != "vector" else END):
            result = pool.step(actions, np.ones(len(numbers), np.bool_))
            wrong = at_end & ((result.reward != 0) | result.terminated | result.truncated)
            if wrong.any():
                says = "does not say how it resets" if raw.autoreset is None else f"says {raw.autoreset}"
                raise EnvSpecError(
                    f"{spec.id}: the step after the end of an episode must only reset it, but gave the reward "
                    f"{result.reward[wrong][0]:g}, and metadata['autoreset_mode'] {says}; set it to SAME_STEP and give "
                    "info['final_obs'], or to DISABLED if it does not reset at all"
                )
            if at_end.any():
                return
            at_end = result.terminated | result.truncated
    finally:
        pool.close()


def _resets_all(spec: EnvSpec, numbers: Sequence[int]) -> bool:
    """Return whether a reset of one environment changes the observations of others."""
    pool = Pool(spec, len(numbers), 1)
    try:
        before = pool.begin(range(len(numbers)), [5 + n for n in numbers], [None] * 3, True)
        pool.begin([0], [1], [None], False)
        if not isinstance(pool.pool, VectorEntryPoint):
            return False
        after = pool._encoded(pool.pool.whole, np.arange(len(numbers)))
        return bool((after[1:] != before[1:]).any())
    finally:
        pool.close()


def _record(spec: EnvSpec, numbers: Sequence[int], threads: int) -> list[bytes]:
    """Return the results of some steps of a pool, by environment.

    `numbers` determine the environments' seeds and actions.
    """
    codec = Actions(pool_spaces(spec).action, spec.id)
    width = int(np.prod(codec.learner_shape))
    keys = np.array([streams.key("self-test", number) for number in numbers])[:, None]
    pool = Pool(spec, len(numbers), threads)
    seeds = [streams.seed_of("self-test", number) for number in numbers]
    records = [[obs] for obs in pool.begin(range(len(numbers)), seeds, [None] * 3, True)]
    for step in range(IMAGE_STEPS if pool.encoder.kind != "vector" else STEPS):
        draws = streams.uniform(keys, step * width + np.arange(width))
        result = pool.step(codec.decode(codec.pick(draws)), np.ones(len(numbers), np.bool_))
        ended = np.flatnonzero(result.terminated | result.truncated).tolist()
        for i, record in enumerate(records):
            record += [np.array(part[i]) for part in result]
        if ended:
            for i, obs in zip(ended, pool.begin(ended, [0] * len(ended), [None] * len(ended), False), strict=True):
                records[i].append(obs)
    pool.close()
    return [b"".join(array.tobytes() for array in record) for record in records]
