"""Action masks: the choices that an environment allows.

An environment tells its mask by an entry ``action_mask`` of a Dict observation, by a method ``action_masks()``, or by
``info["action_mask"]`` if its spec says so. `gym.make` brings the latter two into the first form, so that whatever
stores, replays or normalizes observations does so with masks. A mask has a number for each value of each choice, 0
where it is forbidden: n for Discrete(n), the sum of nvec for MultiDiscrete, and for MultiBinary(n) either n, for the
bits that may be 1, or 2n, for 0 and 1 of each bit.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from inspect import getattr_static
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ...errors import UnsupportedSpace
from .failures import attribute
from .info import as_dict
from .joined import CHOICES, sizes_of
from .spec import EnvSpec, EnvSpecError, reset_result

MASK, METHOD, OBSERVATION = "action_mask", "action_masks", "observation"
ALLOWS = "an action mask allows at least one value of each choice"
Space = spaces.Space[Any]
Mask = NDArray[np.bool_]


def has_method(env: gym.Env[Any, Any]) -> bool:
    """Return whether an environment or its wrappers have a method `action_masks`.

    One that answers every name, by `__getattr__`, has none, unless it passes on another one's.
    """
    if getattr_static(env, METHOD, None) is not None:
        return True
    if isinstance(env, gym.Wrapper) and has_method(env.env):
        return True
    method = attribute(env, METHOD)
    return callable(method) and attribute(method, "__name__") == METHOD


class MaskedShape(tuple[int, ...]):
    """The shape (D,) of an encoded vector with an action mask.

    Attributes:
        mask: columns of the mask.
    """

    mask: slice | None

    def __new__(cls, size: int, mask: slice | None) -> Self:
        self = super().__new__(cls, (size,))
        self.mask = mask
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self[0], self.mask


class CentralShape(MaskedShape):
    """The shape (D,) of a vector that a central critic sees.

    The actor sees the agent's own part alone.

    Attributes:
        actor_columns: columns of the agent's own part, the first ones.
    """

    actor_columns: slice

    def __new__(cls, size: int, mask: slice | None, actor_columns: slice = slice(None)) -> Self:
        self = super().__new__(cls, size, mask)
        self.actor_columns = actor_columns
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self[0], self.mask, self.actor_columns


def actor_columns_in(shape: tuple[int, ...]) -> slice | None:
    """Return the columns of an agent's own observation; None if all are."""
    return shape.actor_columns if isinstance(shape, CentralShape) else None


def mask_in(shape: tuple[int, ...]) -> slice | None:
    """Return the columns of the action mask; None without one."""
    return shape.mask if isinstance(shape, MaskedShape) else None


def check_mask(width: int, space: Space, subject: str) -> None:
    """Raise UnsupportedSpace unless a mask of this width fits the actions."""
    if not isinstance(space, CHOICES):
        raise UnsupportedSpace(
            f"{subject}: an {MASK} is for Discrete, MultiDiscrete and MultiBinary actions, but action_space is "
            f"{space}; rename the entry if it is no mask, or add a wrapper"
        )
    sizes = sizes_of(space)
    widths = [sum(sizes)] + ([len(sizes)] if isinstance(space, spaces.MultiBinary) else [])
    if width not in widths:
        raise UnsupportedSpace(
            f"{subject}: the {MASK} for {space} has {' or '.join(map(str, widths))} numbers, one for each value of "
            f"each choice, but it has {width}; fix it, or rename the entry if it is no mask"
        )


def unused_mask(env: gym.Env[Any, Any], info: Mapping[str, Any]) -> str | None:
    """Return advice about a mask that no policy sees, or None."""
    is_observed = isinstance(env.observation_space, spaces.Dict) and MASK in env.observation_space.spaces
    if MASK not in info or is_observed or not isinstance(env.action_space, CHOICES):
        return None
    return f'info has an {MASK}, which is not obeyed; to obey it, write {{"id": ..., "masks": "info"}}'


def without_choice(masks: NDArray[Any], space: Space) -> NDArray[np.int64]:
    """Return the rows of masks (M, K) that leave no choice."""
    sizes = sizes_of(space)
    if masks.shape[1] != sum(sizes):
        return np.empty(0, np.int64)  # bits that may not be 1 are 0
    starts = np.cumsum([0, *sizes[:-1]])
    return np.flatnonzero((np.add.reduceat(masks > 0.5, starts, axis=1) == 0).any(1))


def legal(action: Any, mask: Any, space: Space) -> Any:
    """Return an action with allowed values in place of forbidden ones."""
    allowed = np.asarray(mask).reshape(-1) > 0.5
    sizes = sizes_of(space)
    if len(allowed) != sum(sizes):  # bits that may be 1
        return (np.asarray(action) * allowed.reshape(np.shape(action))).astype(space.dtype)
    first = np.asarray(getattr(space, "start", 0)).reshape(-1)
    values = np.asarray(action).reshape(-1) - first
    for i, choices in enumerate(np.split(allowed, np.cumsum(sizes)[:-1])):
        if len(options := np.flatnonzero(choices)) and not choices[values[i]]:
            values[i] = options[values[i] % len(options)]
    return (values + first).reshape(np.shape(action)).astype(space.dtype)[()]


def beside_mask(observation: Space, action: Space) -> spaces.Dict:
    """Return the space of observations beside masks of actions."""
    sizes = sizes_of(action)
    width = 2 * len(sizes) if isinstance(action, spaces.MultiBinary) else sum(sizes)
    return spaces.Dict({MASK: spaces.Box(0, 1, (width,), np.int8), OBSERVATION: observation})


def flat(mask: Any) -> NDArray[Any]:
    """Return the numbers of a mask, also of one in parts."""
    if isinstance(mask, list | tuple):
        return np.concatenate([flat(part) for part in mask]) if mask else np.empty(0)
    return np.asarray(mask).reshape(-1)


def told_mask(mask: Any, space: Space, subject: str) -> NDArray[np.int8]:
    """Return a told mask in the form of `beside_mask`.

    A method or info tells it.

    Raises:
        UnsupportedSpace: it does not fit the actions.
        EnvSpecError: an entry is neither 0 nor 1.
    """
    mask = flat(mask)
    if isinstance(space, spaces.MultiBinary) and len(mask) == len(sizes_of(space)):
        mask = np.stack([np.ones_like(mask), mask], 1).reshape(-1)
    check_mask(len(mask), space, subject)
    allowed: NDArray[np.bool_] = mask == 1
    if not (allowed | (mask == 0)).all():
        raise EnvSpecError(
            f"{subject}: an {MASK} has 1 where a value is allowed, else 0, but got {reprlib.repr(mask.tolist())}; "
            "fix it"
        )
    return allowed.astype(np.int8)


class MaskInObservation(gym.ObservationWrapper[Any, Any, Any]):
    """A stateless wrapper that puts a mask into the observation."""

    def __init__(self, env: gym.Env[Any, Any], spec: EnvSpec, method: bool) -> None:
        """Wrap an environment.

        Args:
            env: environment.
            spec: its spec.
            method: whether a method tells the mask, otherwise info does.
        """
        super().__init__(env)
        self.name, self.method = spec.id, method
        self.observation_space = beside_mask(env.observation_space, env.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = reset_result(self.env.reset(seed=seed, options=options), self.name)
        return self._joined(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(observation, info), reward, terminated, truncated, info

    def _joined(self, observation: Any, info: Any) -> dict[str, Any]:
        mask = self.env.get_wrapper_attr(METHOD)() if self.method else as_dict(info, self.name).get(MASK)
        if mask is None:
            rule = f"{METHOD}() returns a mask" if self.method else f"info has an {MASK}"
            cure = "fix it" if self.method else 'add it there, or leave out "masks"'
            raise EnvSpecError(f"{self.name}: {rule} after every reset and step, but it was missing once; {cure}")
        return {MASK: told_mask(mask, self.env.action_space, self.name), OBSERVATION: observation}


class LegalActions(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that replaces forbidden actions, see `legal`.

    It lets recorded or random actions be played in an environment with masks in its observations.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str):
        """Wrap an environment that has this name in error messages."""
        super().__init__(env)
        self.name = name

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        result = self.env.reset(seed=seed, options=options)
        self.last_obs, info = reset_result(result, self.name)
        return self.last_obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        mask = flat(self.last_obs[MASK])
        if len(without_choice(mask[None], self.env.action_space)):
            raise EnvSpecError(
                f"{self.name}: {ALLOWS}, but {self.steps} steps after a reset it allows none; fix it, or end the "
                "episode there"
            )
        self.steps += 1
        result = self.env.step(legal(action, mask, self.env.action_space))
        self.last_obs = result[0]
        return result


def has_mask(env: gym.Env[Any, Any]) -> bool:
    """Return whether the observations of an environment have an action mask."""
    space = env.observation_space
    return isinstance(space, spaces.Dict) and MASK in space.spaces and isinstance(env.action_space, CHOICES)


def with_legal_actions(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """Return an environment in which any recorded action can be played."""
    return LegalActions(env, name) if has_mask(env) else env
