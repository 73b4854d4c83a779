"""Hybrid actions: numbers and choices in one row of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .envs import Array

Space = spaces.Space[Any]
Path = tuple[str | int, ...]
CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
LARGEST_WHOLE = 2**24  # up to which float32 holds every integer


class Joined(spaces.Space[NDArray[np.float32]]):
    """Rows of float32 that represent the actions of a Dict or Tuple.

    Its parts, possibly nested, are bounded Boxes and choices (Discrete, MultiDiscrete and MultiBinary). A row
    holds the parts in order, flattened, with choices as indices from 0.

    Attributes:
        low, high: bounds of every number in a row; 0 and n - 1 for a choice of n.
        choices: columns of choices in a row, with the number of values of each.
    """

    def __init__(self, space: Space) -> None:
        """Describe a space.

        Raises:
            ValueError: `can_join` is false for the space.
        """
        if not can_join(space):
            raise ValueError(f"a Dict or Tuple of bounded Boxes and of choices is joined, but not {space}")
        self.space = space
        self.parts: list[tuple[Path, Space, slice]] = []
        self.choices: dict[int, int] = {}
        low: list[float] = []
        high: list[float] = []
        for path, leaf in leaves(space):
            begin = len(low)
            if isinstance(leaf, spaces.Box):
                low.extend(leaf.low.reshape(-1).tolist())
                high.extend(leaf.high.reshape(-1).tolist())
            else:
                sizes = sizes_of(leaf)
                self.choices |= dict(enumerate(sizes, begin))
                low.extend([0] * len(sizes))
                high.extend(n - 1 for n in sizes)
            self.parts.append((path, leaf, slice(begin, len(low))))
        self.low, self.high = np.array(low, np.float32), np.array(high, np.float32)
        plain = isinstance(space, spaces.Tuple) and all(
            isinstance(part, spaces.Discrete) and part.dtype == np.int64 for part in space.spaces
        )
        self.starts = np.array([leaf.start for _, leaf, _ in self.parts]) if plain else None  # type: ignore[attr-defined]
        super().__init__((len(low),), np.float32)

    def draw(self, uniforms: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return uniformly random rows for uniform numbers (..., k)."""
        rows = self.low + (self.high.astype(float) - self.low) * uniforms
        for column, n in self.choices.items():
            rows[..., column] = np.floor(uniforms[..., column] * n)
        return rows.astype(np.float32)

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[np.float32]:
        return self.draw(self.np_random.uniform(size=self.shape))

    def contains(self, x: Any) -> bool:
        row = np.asarray(x)
        return row.shape == self.shape and bool(((row >= self.low) & (row <= self.high)).all())

    def split(self, row: Array) -> Any:
        """Return a row as the environment's action.

        Rows (..., k) become a batch of actions. Indices and integers are rounded.
        """
        if self.starts is not None and row.ndim == 1:  # the choices of several agents, the usual case
            return tuple(np.rint(row).astype(np.int64) + self.starts)
        values: dict[Path, Any] = {}
        for path, leaf, columns in self.parts:
            numbers = row[..., columns].reshape((*row.shape[:-1], *(leaf.shape or ())))
            if leaf.dtype is not None and leaf.dtype.kind != "f":
                numbers = np.rint(numbers)
            if isinstance(leaf, spaces.Box):
                # A bound in float32 may lie outside the same bound in float64.
                values[path] = np.asarray(np.clip(numbers.astype(leaf.dtype), leaf.low, leaf.high))
            else:
                first = leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0
                values[path] = numbers.astype(leaf.dtype)[()] + first
        return _nested(self.space, (), values)

    def __repr__(self) -> str:
        return f"Joined({self.space})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joined) and self.space == other.space

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's own spaces


class JoinedActions(gym.ActionWrapper[Any, Any, Any]):
    """A stateless wrapper that takes rows as actions, or these themselves."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.joined = self.action_space = Joined(env.action_space)

    def action(self, action: Array) -> Any:
        return self.joined.split(action) if isinstance(action, np.ndarray) else action


def can_join(space: Space) -> bool:
    """Return whether `Joined` can represent a space.

    It must be a Dict or Tuple of choices and of bounded Boxes.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    parts = [leaf for _, leaf in leaves(space)]
    return bool(parts) and all(
        isinstance(part, CHOICES) or (takes_numbers(part) and part.is_bounded()) for part in parts
    )


def takes_numbers(space: Space) -> TypeGuard[spaces.Box]:
    """Return whether a space is a Box of numbers that float32 holds.

    Integers are rounded, so float32 must hold every one of them.
    """
    if not isinstance(space, spaces.Box):
        return False
    bounds = np.array([space.low, space.high], np.float64)
    return space.dtype.kind == "f" or bool((np.abs(bounds) <= LARGEST_WHOLE).all())


def sizes_of(space: Space) -> list[int]:
    """Return the number of values of each choice in a space."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return list(map(int, space.nvec.reshape(-1)))
    return [2] * math.prod(space.shape or ())


def _children(space: Space) -> list[tuple[str | int, Space]]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def leaves(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """Yield the parts of nested Dicts and Tuples, with their paths."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
    for step, part in _children(space):
        yield from leaves(part, (*path, step))


def _nested(space: Space, path: Path, values: dict[Path, Any]) -> Any:
    if path in values:
        return values[path]
    parts = {step: _nested(part, (*path, step), values) for step, part in _children(space)}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
