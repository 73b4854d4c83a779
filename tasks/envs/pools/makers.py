"""Creation of pools: ``envpool/CartPole-v1`` is EnvPool's, ``vector/ALE/Pong-v5`` Gymnasium's.

EnvPool (Weng et al. 2022, arXiv:2206.10558) takes seeds only once, for the first episodes of a pool; later episodes
follow from them. Gymnasium's pools come from an id's ``vector_entry_point``, and every episode has its own seed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from ...errors import text_of
from ...runtime.warning_filters import changed_filters
from ..base.envs import Array
from ..base.failures import close_or_warn
from ..base.spec import EnvSpec, EnvSpecError
from ..gym.chance import first_import
from ..gym.make import register_atari

# EnvPool makes float32 Boxes of float64 bounds, which does not concern the user's program.
IGNORED = {".*precision lowered by casting": UserWarning}
UNDECLARED = {".*AutoresetMode.*": UserWarning}  # the self-test finds out
RESERVED = frozenset({"num_envs", "batch_size", "num_threads", "seed", "max_num_players", "autoreset_mode"})
RESULTS = {"rewards": "buif", "terminated": "bui", "truncated": "bui"}  # of a step, and their types of numbers


def is_pool(spec: EnvSpec) -> bool:
    """Return whether a library computes these environments all at once."""
    return spec.id.startswith(tuple(MAKERS))


def make_pool(spec: EnvSpec, seeds: Sequence[int], threads: int) -> RawPool:
    """Create a pool of len(seeds) environments.

    Raises:
        EnvSpecError: it cannot be made.
    """
    prefix = spec.id.partition("/")[0] + "/"
    name = spec.id.removeprefix(prefix)
    if spec.wrappers or spec.parameters:
        noun = "wrappers" if spec.wrappers else "parameters"
        raise EnvSpecError(
            f"{spec.id}: an environment in a pool takes no {noun}, but got {list(getattr(spec, noun))}; "
            f"{name}, which is stepped alone, may have them"
        )
    if wrong := sorted(RESERVED & spec.kwargs.keys()):
        raise EnvSpecError(f"{spec.id}: kwargs must leave {', '.join(wrong)} to the task, which sets it")
    try:
        with changed_filters(IGNORED):
            return MAKERS[prefix](spec, name, seeds, threads)
    except EnvSpecError:
        raise
    except (TypeError, ValueError, AssertionError, gym.error.Error) as error:
        raise EnvSpecError(f"{spec.id} cannot be made with kwargs {dict(spec.kwargs)}: {text_of(error)}") from error


class EnvPool:
    """M environments of EnvPool.

    Attributes:
        observation_space, action_space: spaces of one environment.
    """

    def __init__(self, spec: EnvSpec, name: str, seeds: Sequence[int], threads: int) -> None:
        try:
            envpool = import_module("envpool")
        except ImportError as error:
            raise EnvSpecError(f"{spec.id} needs envpool; pip install 'rekindle-rl[envpool]'") from error
        if name not in (names := envpool.list_all_envs()):
            near = get_close_matches(name, names, n=1)
            cure = f"did you mean envpool/{near[0]}?" if near else "`envpool.list_all_envs()` lists them"
            raise EnvSpecError(f"{spec.id} must be an environment that EnvPool knows: {cure}")
        limit = {} if spec.max_episode_steps is None else {"max_episode_steps": spec.max_episode_steps}
        self.pool = envpool.make_gymnasium(
            name, num_envs=len(seeds), seed=list(seeds), num_threads=threads, **limit, **deepcopy(spec.kwargs)
        )
        self.observation_space, self.action_space = self.pool.observation_space, self.pool.action_space

    def reset(self, indices: Array, seeds: Array) -> tuple[Any, Array]:
        """Start episodes; return the first observations, and their indices."""
        obs, info = self.pool.reset(indices.copy())
        return obs, info["env_id"]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, Array, Mapping[str, Any]]:
        """Step all environments.

        Returns:
            Observations, rewards, terminated, truncated, the indices of the environments that they belong to, and info.
        """
        obs, reward, terminated, truncated, info = self.pool.step(actions)
        return obs, reward, terminated, truncated, info["env_id"], info

    def close(self) -> None:
        """Free all resources."""
        self.pool.close()


class VectorEntryPoint:
    """M environments of an id's vector entry point; the interface is `EnvPool`'s.

    Attributes:
        whole: all observations at the last reset, also of environments that were not reset.
    """

    def __init__(self, spec: EnvSpec, name: str, seeds: Sequence[int], threads: int) -> None:
        more: dict[str, Any] = deepcopy(dict(spec.kwargs))
        self.is_atari = name.startswith("ALE/")
        if self.is_atari:
            register_atari(spec)
            more["num_threads"] = threads
        name = _imported(spec, name)
        if gym.spec(name).vector_entry_point is None:
            raise EnvSpecError(f"{spec.id}: {name} has no vector entry point; use {name}, by several processes if slow")
        if spec.max_episode_steps is not None:
            raise EnvSpecError(
                f"{spec.id}: max_episode_steps must be None; its vector entry point may have a limit of "
                "its own among its kwargs"
            )
        self.spec = spec
        with changed_filters(UNDECLARED):
            self.envs = gym.make_vec(name, len(seeds), "vector_entry_point", **more)
        self.observation_space, self.action_space = self.envs.single_observation_space, self.envs.single_action_space
        self.indices = np.arange(len(seeds))
        try:
            self.reset(self.indices, np.asarray(seeds))
        except (TypeError, ValueError, gym.error.Error) as error:
            self.close()
            raise EnvSpecError(
                f"{spec.id}: a vector environment must take a seed for each of its environments, as otherwise episodes "
                f"depend on their neighbors, but {type(self.envs).__name__} does not ({text_of(error)}); use {name}"
            ) from error

    def reset(self, indices: Array, seeds: Array) -> tuple[Any, Array]:
        mask = np.isin(self.indices, indices)
        # Atari takes the seeds of the environments that are reset, Gymnasium's own classes a list of all.
        seeding: Any = seeds
        if not self.is_atari:
            seeding = np.zeros(len(mask), np.int64)
            seeding[mask] = seeds
            seeding = seeding.tolist()
        obs, _ = self.envs.reset(seed=seeding, options={"reset_mask": mask.copy()})
        self.whole = obs
        return rows(obs, mask), self.indices[mask]

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, Array, Mapping[str, Any]]:
        """Step all environments, see `EnvPool.step`.

        In autoreset mode SAME_STEP, the last observations of episodes are those in info.

        Raises:
            EnvSpecError: these are missing, or rewards or ends are none.
        """
        obs, *results, info = self.envs.step(actions.copy())
        reward, terminated, truncated = map(self._checked, RESULTS, results)
        ended = np.flatnonzero(terminated | truncated).tolist()
        if ended and (final := info.get("final_obs")) is not None:
            obs = _replaced(obs, {i: rows(final, i) for i in ended})
        elif ended and self.autoreset == AutoresetMode.SAME_STEP:
            raise EnvSpecError(
                f"{self.spec.id}: a vector environment whose autoreset_mode is SAME_STEP gives the last observations "
                "of episodes in info['final_obs'], but there are none; add them, or use NEXT_STEP or DISABLED"
            )
        return obs, reward, terminated, truncated, self.indices, info

    def _checked(self, name: str, values: Any) -> Array:
        """Return rewards or ends as an array; raise EnvSpecError otherwise."""
        array, types = np.asarray(values), RESULTS[name]
        if array.dtype.kind not in types or array.shape != self.indices.shape:
            raise EnvSpecError(
                f"{self.spec.id}: a step of {len(self.indices)} environments returns as many rewards, as numbers, and "
                f"as many booleans for terminated and for truncated, but {name} is {reprlib.repr(values)}, of type "
                f"{array.dtype} and shape {array.shape}; fix it"
            )
        return array if types == "buif" else array.astype(np.bool_)

    @property
    def autoreset(self) -> AutoresetMode | None:
        """Way in which the environments say that they begin the next episode."""
        mode = self.envs.metadata.get("autoreset_mode")
        return mode if isinstance(mode, AutoresetMode) else None

    def close(self) -> None:
        close_or_warn(self.envs, self.spec)


def _replaced(obs: Any, final: Mapping[int, Any]) -> Any:
    """Return a copy of observations with other rows, by their index."""
    if isinstance(obs, Mapping):
        return {name: _replaced(part, {i: row[name] for i, row in final.items()}) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_replaced(part, {i: row[k] for i, row in final.items()}) for k, part in enumerate(obs))
    batch = np.array(obs)
    for i, row in final.items():
        batch[i] = row
    return batch


def _imported(spec: EnvSpec, name: str) -> str:
    """Import the module at the start of an id; return the rest."""
    module, _, pool = name.rpartition(":")
    try:
        if module:
            with first_import([module]):
                import_module(module)
    except ImportError as error:
        raise EnvSpecError(
            f"{spec.id} needs a module that cannot be imported: {error}; install its package, or run where its file is"
        ) from error
    return pool


def rows(obs: Any, selection: Any) -> Any:
    """Return the observations selected by a mask, or one by its index."""
    if isinstance(obs, Mapping):
        return {name: rows(part, selection) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(rows(part, selection) for part in obs)
    return obs[selection]


RawPool = EnvPool | VectorEntryPoint
MAKERS: Mapping[str, type[RawPool]] = {"envpool/": EnvPool, "vector/": VectorEntryPoint}
