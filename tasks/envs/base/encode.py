"""Encoding of observations for networks, and decoding of a learner's actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ...errors import UnsupportedSpace
from .envs import Array
from .joined import Joined, Path, Space, leaves

FLAT_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Spaces(NamedTuple):
    """The spaces of one environment."""

    observation: Space
    action: Space


class MixedShape(tuple[int, ...]):
    """The shape of a row of bytes: numbers as float32, then images.

    It has two axes, so that nothing takes it for a vector. Rows are padded to whole float32 numbers.

    Attributes:
        numbers: how many numbers a row has.
        images: shape of each image, and the slice of its bytes in a row.
    """

    numbers: int
    images: list[tuple[tuple[int, ...], slice]]

    def __new__(cls, numbers: int, shapes: Sequence[tuple[int, ...]]) -> MixedShape:
        ends = list(accumulate((math.prod(shape) for shape in shapes), initial=4 * numbers))
        self = super().__new__(cls, (1, -(-ends[-1] // 4) * 4))
        self.numbers = numbers
        self.images = [(shape, slice(*span)) for shape, span in zip(shapes, pairwise(ends), strict=True)]
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.numbers, [shape for shape, _ in self.images]


class Observations:
    """Encoder of the observations of a space.

    - A uint8 Box with two to four axes is an image: uint8, height x width x channels. Stacked frames become channels.
    - Everything else is a float32 vector: Box flattened, Discrete one-hot, MultiDiscrete one-hot each, MultiBinary
      unchanged, Dict and Tuple concatenated in order.
    - A Dict or Tuple with images is a row of bytes, see `MixedShape`.

    Attributes:
        kind: "image", "vector" or "mixed".
        dtype, shape: type and shape of an encoded observation.
        write: function that encodes an observation into an array of zeros of that shape.
    """

    def __init__(self, space: Space, env: str) -> None:
        """Describe a space.

        Args:
            space: observation space.
            env: name of the environment in error messages.

        Raises:
            UnsupportedSpace: a part of the space is of another kind; the message names it.
        """
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.shape: tuple[int, ...]
        self.write: Callable[[Any, Array], None] = _write_image
        if is_image(space):
            self.kind, self.shape = "image", _image_shape(space)
            return
        parts, images, end = [], [], 0
        for path, leaf in leaves(space):
            if is_image(leaf):
                images.append((path, _image_shape(leaf)))
                continue
            if not isinstance(leaf, FLAT_SPACES):
                where = "".join(f"[{step!r}]" for step in path)
                raise UnsupportedSpace(
                    f"{env}: observations must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, "
                    f"but observation_space{where} is {leaf}; add a wrapper that turns it into one of these"
                )
            begin, end = end, end + spaces.flatdim(leaf)
            parts.append((path, _writer(leaf), slice(begin, end)))
        numbers = parts[0][1] if len(parts) == 1 and not parts[0][0] else _write_parts(parts)
        if images:
            self.kind, self.shape = "mixed", MixedShape(end, [shape for _, shape in images])
            self.write = _write_mixed(numbers, [path for path, _ in images], self.shape)
        else:
            self.kind, self.dtype, self.shape, self.write = "vector", np.dtype(np.float32), (end,), numbers

    def numbers(self, obs: Array) -> Array | None:
        """Return the numbers (M, D) in M encoded observations; None for images."""
        if isinstance(self.shape, MixedShape):
            return np.ascontiguousarray(obs[:, 0, : 4 * self.shape.numbers]).view(np.float32)
        return obs.reshape(len(obs), -1) if self.kind == "vector" else None


Writer = Callable[[Any, Array], None]


def _writer(space: Space) -> Writer:
    """Return a function (observation, out) that fills a vector of zeros."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)

        def one_hot(value: Any, out: Array) -> None:
            out[int(value) - start] = 1

        return one_hot
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1)
        offset = np.concatenate(([0], np.cumsum(sizes)[:-1])) - space.start.reshape(-1)

        def one_hots(value: Any, out: Array) -> None:
            out[np.asarray(value).reshape(-1) + offset] = 1

        return one_hots

    def flat(value: Any, out: Array) -> None:
        out[:] = np.asarray(value).reshape(-1)

    return flat


def _write_parts(parts: list[tuple[Path, Writer, slice]]) -> Writer:
    def write(value: Any, out: Array) -> None:
        for path, writer, columns in parts:
            writer(_part(value, path), out[columns])

    return write


def _write_mixed(numbers: Writer, paths: list[Path], shape: MixedShape) -> Writer:
    places = list(zip(paths, shape.images, strict=True))

    def write(value: Any, out: Array) -> None:
        row = out[0]
        numbers(value, row[: 4 * shape.numbers].view(np.float32))
        for path, (form, columns) in places:
            _write_image(_part(value, path), row[columns].reshape(form))

    return write


def _part(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def is_image(space: Space) -> bool:
    """Return whether observations of this space are images."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


def _image_shape(space: Space) -> tuple[int, ...]:
    return _image(np.empty(space.shape or (), np.uint8)).shape


def _image(value: Array) -> Array:
    """Return an image with its channels last.

    The channels are the shorter of the first and the last axis.
    """
    if value.ndim == 2:
        return value[:, :, None]
    if value.ndim == 4:  # frames x height x width x channels
        return np.moveaxis(value, 0, 2).reshape(*value.shape[1:3], -1)
    return np.moveaxis(value, 0, 2) if value.shape[0] < value.shape[2] else value


def _write_image(value: Any, out: Array) -> None:
    out[:] = _image(np.asarray(value))


class Actions:
    """Conversion between a learner's actions, see ``Envs.step``, and an environment's."""

    def __init__(self, space: Space, env: str) -> None:
        self.space, self.env = space, env
        self.shape = space.shape or ()
        if not isinstance(space, (*FLAT_SPACES, Joined)):
            raise UnsupportedSpace(
                f"{env}: actions must be Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these "
                f"with bounded Boxes of floats, but action_space is {space}; add a wrapper that turns it into one"
            )
        self.whole = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer)
        # A learner sees a MultiDiscrete or MultiBinary as one row of choices; a Box keeps its shape.
        rows = isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
        self.learner_shape = (int(np.prod(self.shape)),) if rows else self.shape

    def check(self, actions: Array, batch: tuple[int, int]) -> None:
        """Raise ValueError unless these are actions for a batch of environments."""
        kinds = "f" if isinstance(self.space, spaces.Box | Joined) else "iu"
        if actions.shape != (*batch, *self.learner_shape) or actions.dtype.kind not in kinds:
            raise ValueError(
                f"{self.env}: actions for {self.space} must be {'float32' if kinds == 'f' else 'integers'} of shape "
                f"{(*batch, *self.learner_shape)}, but got {actions.dtype} of shape {actions.shape}"
            )

    def decode(self, actions: Array) -> Array:
        """Return actions as environments take them, (P * N, *shape)."""
        actions = actions.reshape(-1, *self.shape)
        space = self.space
        if isinstance(space, spaces.Box | Joined):
            actions = np.minimum(np.maximum(actions, space.low), space.high)  # np.clip takes five times as long
            return (np.rint(actions) if self.whole else actions).astype(space.dtype, copy=False)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return (actions + space.start).astype(space.dtype, copy=False)
        return actions.astype(space.dtype)

    def encode(self, action: Any) -> Array:
        """Return an environment's action in the learner's form, (*learner_shape)."""
        row = np.asarray(action).reshape(self.learner_shape)
        if isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete):
            return np.asarray(row - np.reshape(self.space.start, self.learner_shape))
        return row

    def pick(self, draws: NDArray[np.float64], beyond: float = 0.0) -> Array:
        """Return an action for each row of numbers in [0, 1).

        Unbounded sides of a Box are cut off. Numbers reach `beyond` their bounds, as a share of the distance between
        them.
        """
        space = self.space
        draws = draws.reshape(-1, *self.learner_shape)
        if isinstance(space, spaces.Box):
            draws = draws * (1 + 2 * beyond) - beyond
        if isinstance(space, Joined):
            return space.draw(draws)
        if isinstance(space, spaces.Box):
            low = np.where(np.isfinite(space.low), space.low, np.where(np.isfinite(space.high), space.high - 2, -1))
            high = np.where(np.isfinite(space.high), space.high, low + 2)
            return (low * (1 - draws) + high * draws).astype(np.float32)
        if isinstance(space, spaces.Discrete):
            return (draws * int(space.n)).astype(np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            return (draws * space.nvec.reshape(-1)).astype(np.int64)
        return (draws * 2).astype(np.int8)
