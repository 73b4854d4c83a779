"""Hybrid actions, of numbers and choices, as one row of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .envs import Array

Space = spaces.Space[Any]
Path = tuple[str | int, ...]


class Joined(spaces.Space[NDArray[np.float32]]):
    """Rows of float32 for the actions of a Dict or Tuple.

    Its parts, nested or not, are Boxes of bounded floats and Discretes. A row holds the parts in order: a Box
    flattened, a Discrete as an index from 0.

    Attributes:
        low, high: bounds of every number in a row; those of a Discrete of n are 0 and n - 1.
        choices: the columns of the Discretes in a row, and the number of choices of each.
    """

    def __init__(self, space: Space) -> None:
        """Raise ValueError unless `can_join(space)`."""
        if not can_join(space):
            raise ValueError(f"a Dict or Tuple of bounded Boxes of floats and Discretes is joined, but not {space}")
        self.space = space
        self.parts: list[tuple[Path, Space, slice]] = []
        self.choices: dict[int, int] = {}
        low: list[float] = []
        high: list[float] = []
        for path, leaf in leaves(space):
            begin = len(low)
            if isinstance(leaf, spaces.Discrete):
                self.choices[begin] = int(leaf.n)
                low.append(0)
                high.append(int(leaf.n) - 1)
            elif isinstance(leaf, spaces.Box):
                low.extend(leaf.low.reshape(-1).tolist())
                high.extend(leaf.high.reshape(-1).tolist())
            self.parts.append((path, leaf, slice(begin, len(low))))
        self.low, self.high = np.array(low, np.float32), np.array(high, np.float32)
        super().__init__((len(low),), np.float32)

    def draw(self, uniforms: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return uniform rows for uniform numbers (..., k)."""
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

        Rows (..., k) become a batch of them. Indices are rounded.
        """
        values: dict[Path, Any] = {}
        for path, leaf, columns in self.parts:
            if isinstance(leaf, spaces.Discrete):
                values[path] = leaf.start + np.rint(row[..., columns.start]).astype(np.int64)
            elif isinstance(leaf, spaces.Box):
                numbers = row[..., columns].reshape((*row.shape[:-1], *leaf.shape)).astype(leaf.dtype)
                # A bound in float32 may lie outside the same bound in float64.
                values[path] = np.asarray(np.clip(numbers, leaf.low, leaf.high))
        return _nested(self.space, (), values)

    def __repr__(self) -> str:
        return f"Joined({self.space})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joined) and self.space == other.space

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's own spaces


class JoinedActions(gym.ActionWrapper[Any, Any, Any]):
    """A stateless wrapper that takes the actions of many parts as rows."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.joined = self.action_space = Joined(env.action_space)

    def action(self, action: Array) -> Any:
        return self.joined.split(action)


def can_join(space: Space) -> bool:
    """Return whether a space has the form that `Joined` takes.

    That is a Dict or Tuple of Discretes and at least one Box of bounded floats.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    parts = [leaf for _, leaf in leaves(space)]
    boxes = [part for part in parts if isinstance(part, spaces.Box)]
    bounded = all(np.issubdtype(box.dtype, np.floating) and box.is_bounded() for box in boxes)
    return bool(boxes) and bounded and all(isinstance(part, spaces.Box | spaces.Discrete) for part in parts)


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
